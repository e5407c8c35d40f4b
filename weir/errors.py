"""The error tree. A class of its own exists only where a caller acts differently on it.

Every message names the thing that is wrong (file, key, address, step) and the mend; entry points print
``str(error)`` on standard error, one line, and exit with ``exit_code``.

    WeirError
    +-- ConfigError        fatal: config.json, a flag or an environment variable is wrong
    +-- GraphError         fatal: the dataflow cannot be built or loaded
    |   +-- JobCodeError   fatal: the job's own code raised; has its traceback
    +-- InputError         fatal: a source file is absent, unreadable or of a wrong form
    +-- AddressInUseError  fatal: a port is taken
    +-- ConnectionLostError retryable: a peer or the control plane does not answer
    +-- HandshakeError     fatal: the other side runs another protocol version or another job
    +-- FencedError        fatal for the caller: a newer owner exists, it must stop writing
    +-- StateError         fatal: the state directory is not ours, is damaged or cannot be written
    +-- CheckpointError    a checkpoint cannot be written or read; the job goes on
    |   +-- SupersededError fatal for the caller: another control plane leads
    +-- WireLimitError     fatal: a single record is larger than a message may be
    +-- PlacementError     retryable: not enough free slots
    +-- InvalidTransitionError  a bug: a state machine was asked for a move that it does not have
"""

from __future__ import annotations

import errno


class WeirError(Exception):
    """Base of all errors that Weir raises on purpose."""

    #: Whether the same call can succeed later without a change by the user.
    retryable = False
    #: Whether something around the job failed (a disk, a peer, the network) and not the job itself: restarts on its
    #: account are not limited. Set where the cause is known.
    is_outage = False
    #: What a process exits with when this error ends it.
    exit_code = 1


class ConfigError(WeirError):
    """A configuration value is unknown, of a wrong type or not supported."""

    exit_code = 2


class GraphError(WeirError):
    """The dataflow is not valid; the message names the step."""

    exit_code = 2


class JobCodeError(GraphError):
    """The job's own code raised while the job was loaded; the message names the exception, the file and the line."""

    def __init__(self, message: str, user_traceback: str) -> None:
        """``user_traceback``: of the job's own code, whole; entry points print it before the message."""
        super().__init__(message)
        self.user_traceback = user_traceback


class InputError(WeirError):
    """An input file is absent, unreadable or of a wrong form."""


class AddressInUseError(WeirError):
    """A port is taken by another process."""


class ConnectionLostError(WeirError):
    """A peer does not answer; the message names its address."""

    retryable = True
    is_outage = True


class HandshakeError(WeirError):
    """The other side speaks another protocol version or runs another job."""


class FencedError(WeirError):
    """The caller's owner epoch or generation is older than the one in force."""


class StateError(WeirError):
    """The state directory is not ours, is damaged or cannot be written."""


class CheckpointError(WeirError):
    """A checkpoint cannot be written or read; the message names the file and the checkpoint store."""


class UserFunctionError(WeirError):
    """A function of the job's author raised, or returned what it should not; the message names the step."""


class SupersededError(CheckpointError):
    """Somebody else has committed a checkpoint of this job under the same number: the caller leads no more."""


class WireLimitError(WeirError):
    """One record is larger than a message may be; the message names the setting."""


class PlacementError(WeirError):
    """There are not enough free slots for the job."""

    retryable = True


class InvalidTransitionError(WeirError):
    """A state machine was asked for a move that its table does not hold; carries the history."""


def is_outage(error: BaseException | None) -> bool:
    """Whether an error, or one that it was raised from, is an outage: a full disk, a peer that does not answer."""
    seen = 0
    while error is not None and seen < _CAUSES_MAX:
        if isinstance(error, WeirError) and error.is_outage:
            return True
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error, seen = error.__cause__, seen + 1
    return False


#: Longer rows of causes are somebody's mistake.
_CAUSES_MAX = 20
