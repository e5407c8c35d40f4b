"""How long a job that an earlier control plane left running waits for its task managers. Pure."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

#: Task managers have this many lease times to come back by themselves.
PATIENCE_LEASES = 2
#: One that answers with the job on it lives, and is only slow to register: it is waited for this many lease times.
PATIENCE_WITH_LIVING_LEASES = 15


class Next(Enum):
    """The next step of the control plane that takes over."""

    #: Look again a moment later; when all are back the job goes on as it is.
    WAIT = "wait"
    #: Ask the task managers that are missing whether the job runs on them, and decide again.
    ASK = "ask"
    #: The job starts again from its latest checkpoint.
    RESTART = "restart"


def decide(
    missing: Collection[str],
    waited_ms: int,
    lease_ms: int,
    *,
    is_steady: bool,
    living: Collection[str] | None = None,
) -> Next:
    """Decide; asked again while it is WAIT and the job has not gone on.

    Args:
        missing: task managers of the job that have not registered here yet.
        waited_ms: since this control plane can be reached.
        lease_ms: after so long without a heartbeat a task manager counts as lost.
        is_steady: no rescale was switching when the earlier control plane ended.
        living: those of ``missing`` that answered and said that the job runs on them; None: not asked yet.
    """
    if waited_ms < PATIENCE_LEASES * lease_ms:
        return Next.WAIT
    if not is_steady or waited_ms >= PATIENCE_WITH_LIVING_LEASES * lease_ms:
        return Next.RESTART
    if living is None:
        return Next.ASK
    # One that is gone does not come back, whoever else is only slow.
    return Next.WAIT if set(missing) <= set(living) else Next.RESTART
