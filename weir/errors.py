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
    |   +-- StateMismatchError fatal: a checkpoint or a store holds state that this job cannot read
    +-- CheckpointError    a checkpoint cannot be written or read; the job goes on
    |   +-- SupersededError fatal for the caller: another control plane leads
    +-- WireLimitError     fatal: a single record is larger than a message may be
    +-- PlacementError     retryable: not enough free slots
    +-- InvalidTransitionError  a bug: a state machine was asked for a move that it does not have
"""

from __future__ import annotations

import errno
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


class FailureKind(Enum):
    """What a failure says about the next attempt: whether a job starts again, after which wait, and with which rows."""

    #: Something around the job failed (a disk, a peer, what a sink writes to) and will be back: restarts are not
    #: limited, each waits longer than the one before.
    OUTAGE = "outage"
    #: A step raised at rows: they make it raise again and again, unless they are put aside.
    ROWS = "rows"
    #: The next attempt fails in the same way (an absent input, state of another form): there is none.
    PERMANENT = "permanent"
    #: Anything else: the number of restarts is limited.
    OTHER = "other"


class WeirError(Exception):
    """Base of all errors that Weir raises on purpose."""

    #: Whether the same call can succeed later without a change by the user.
    retryable = False
    #: What the error says about the next attempt; set on an instance where more is known.
    failure_kind = FailureKind.OTHER
    #: Name of the step of the job in which it was raised; the operator chain sets it.
    step = ""
    #: Whether the message begins with the file, line and column of a text that the user wrote.
    names_place = False
    #: What a process exits with when this error ends it.
    exit_code = 1


class ConfigError(WeirError):
    """A configuration value is unknown, of a wrong type or not supported."""

    failure_kind = FailureKind.PERMANENT
    exit_code = 2


class GraphError(WeirError):
    """The dataflow is not valid; the message names the step."""

    failure_kind = FailureKind.PERMANENT
    exit_code = 2


class JobCodeError(GraphError):
    """The job's own code raised while the job was loaded; the message names the exception, the file and the line."""

    def __init__(self, message: str, user_traceback: str) -> None:
        """``user_traceback``: of the job's own code, whole; entry points print it before the message."""
        super().__init__(message)
        self.user_traceback = user_traceback


class InputError(WeirError):
    """An input file is absent, unreadable or of a wrong form; an output cannot be written."""

    failure_kind = FailureKind.PERMANENT


class AddressInUseError(WeirError):
    """A port is taken by another process."""


class ConnectionLostError(WeirError):
    """A peer does not answer; the message names its address."""

    retryable = True
    failure_kind = FailureKind.OUTAGE


class HandshakeError(WeirError):
    """The other side speaks another protocol version or runs another job."""


class FencedError(WeirError):
    """The caller's owner epoch or generation is older than the one in force."""


class StateError(WeirError):
    """The state directory is not ours, is damaged or cannot be written."""


class StateMismatchError(StateError):
    """State of a checkpoint or a store has another form than the job needs; the message has both forms."""

    failure_kind = FailureKind.PERMANENT


class CheckpointError(WeirError):
    """A checkpoint cannot be written or read; the message names the file and the checkpoint store."""


class UserFunctionError(WeirError):
    """A function of the job's author raised, or returned what it should not; the message names the step."""

    failure_kind = FailureKind.ROWS
    #: Where in the step's batch the row is with which the function was called; None: it was called with all of them.
    row_index: int | None = None
    #: What the function was called with, where the step was given no rows: timers that were due.
    rows: pa.RecordBatch | None = None


class SupersededError(CheckpointError):
    """Another control plane leads the job: it has committed a checkpoint, or holds the record."""


class WireLimitError(WeirError):
    """One record is larger than a message may be; the message names the setting."""

    failure_kind = FailureKind.PERMANENT


class PlacementError(WeirError):
    """There are not enough free slots for the job."""

    retryable = True


class InvalidTransitionError(WeirError):
    """A state machine was asked for a move that its table does not hold; carries the history."""


def kind_of(error: BaseException | None) -> FailureKind:
    """What an error, with those that it was raised from, says about the next attempt.

    An outage anywhere in the row of causes makes it one: a full disk, a peer that does not answer. So does an
    OSError of code that is not ours; ours says with its own error what an absent file or a denied access means.
    """
    is_ours = isinstance(error, WeirError) and not isinstance(error, UserFunctionError)
    kind = error.failure_kind if isinstance(error, WeirError) else FailureKind.OTHER
    # Ctrl-C reaches the main thread alone: here it is a function's own.
    if isinstance(error, SystemExit | KeyboardInterrupt):
        kind = FailureKind.PERMANENT
    seen = 0
    while error is not None and seen < _CAUSES_MAX:
        if isinstance(error, WeirError) and error.failure_kind is FailureKind.OUTAGE:
            return FailureKind.OUTAGE
        if isinstance(error, OSError) and _passes(error, is_ours=is_ours):
            return FailureKind.OUTAGE
        error, seen = error.__cause__, seen + 1
    return kind


def kind_in_step(error: BaseException, *, is_sink: bool, takes_rows: bool) -> FailureKind:
    """As :func:`kind_of`, for what a step of the job raised.

    Args:
        error: what it raised.
        is_sink: the step writes to the outside: what it raises is about the place it writes to, never about rows,
            unless it is plainly a mistake in its code.
        takes_rows: it was given rows then; not at a checkpoint or at the end.
    """
    kind = kind_of(error)
    is_ours = isinstance(error, WeirError) and not isinstance(error, UserFunctionError)
    if is_ours or kind is FailureKind.PERMANENT:
        return kind
    if not is_sink and _is_absent_or_denied(error):
        return FailureKind.OTHER
    if kind is FailureKind.OUTAGE:
        return kind
    if is_sink:
        return FailureKind.OTHER if isinstance(error, _MISTAKES) else FailureKind.OUTAGE
    return FailureKind.ROWS if takes_rows and not isinstance(error, MemoryError) else FailureKind.OTHER


def _is_absent_or_denied(error: BaseException | None) -> bool:
    """Whether a file is absent or may not be used: waiting rarely mends that, nor do other rows.

    Any other passing cause on the way (a peer that does not answer) is the better explanation.
    """
    found, seen = False, 0
    while error is not None and seen < _CAUSES_MAX:
        if isinstance(error, WeirError) and error.failure_kind is FailureKind.OUTAGE:
            return False
        if isinstance(error, OSError):
            if error.errno not in _ABSENT_OR_DENIED:
                return False
            found = True
        error, seen = error.__cause__, seen + 1
    return found


def _passes(error: OSError, *, is_ours: bool) -> bool:
    if is_ours:
        return error.errno in _PASSING or isinstance(error, TimeoutError | ConnectionError)
    return not isinstance(error, IsADirectoryError | NotADirectoryError)


#: Longer rows of causes are somebody's mistake.
_CAUSES_MAX = 20
#: Error numbers of the system after which the same call may succeed later.
_PASSING = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EIO,
        errno.ESTALE,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
    }
)
#: An absent file, a denied access: in a step of the job's author they are no outage.
_ABSENT_OR_DENIED = frozenset({errno.ENOENT, errno.EACCES, errno.EPERM})
#: No database raises these because it is away. Drivers do raise ValueError and RuntimeError.
_MISTAKES = (
    TypeError,
    AttributeError,
    NameError,
    LookupError,
    AssertionError,
    ArithmeticError,
    ImportError,
    SyntaxError,
    NotImplementedError,
)
