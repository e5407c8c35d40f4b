"""Rescales on a machine that is busy with other tests."""

from experiments.processes import ClusterError
from experiments.scaling import rescale

#: A task manager has 5 s to answer; where rows are 16 MB and three tests share two cores, it may take longer.
_TRIES = 4


def rescale_patiently(cluster, stage, parallelism):
    """Rescale; again where a task manager that is busy did not answer in time, which leaves the job as it was."""
    for _ in range(_TRIES - 1):
        try:
            return rescale(cluster, stage, parallelism)
        except ClusterError as error:
            # The logs follow after the first line.
            if "does not answer: Deadline Exceeded" not in str(error).partition("\n")[0]:
                raise
    return rescale(cluster, stage, parallelism)
