"""Pure decisions, from routing to the life of a job: no input or output, threads or wall clock."""
