"""What errors of the log's clients say about the next attempt, as one line with the mend."""

from __future__ import annotations

from weir.errors import FailureKind, InputError, WeirError
from weir.log.errors import LogRejectedError


def unreachable(who: str, bootstrap: str, error: WeirError) -> InputError:
    """What to raise (``from error``) when the log does not do what is asked.

    Args:
        who: the step, for the message.
        bootstrap: addresses of brokers.
        error: of a client. If a later call may succeed, the job begins again until the log is back.
    """
    if isinstance(error, LogRejectedError):
        return InputError(f"{who}: the log at {bootstrap} refuses a record: {error}")
    if not error.retryable:
        return InputError(f"{who}: {error}")
    failure = InputError(
        f"{who}: the log at {bootstrap} does not answer: {error}; check the addresses, and that it runs"
    )
    failure.failure_kind = FailureKind.OUTAGE
    return failure
