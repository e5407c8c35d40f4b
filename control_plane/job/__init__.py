"""The life of the job: start, deployment, failure, recovery, end."""
