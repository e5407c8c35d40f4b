"""What the database's client raises, as errors that name the place and the mend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weir.errors import FailureKind, StateError

#: Names of the client's errors after which the same request may succeed later.
_PASSING = frozenset(
    {
        "CassErrorLibNoHostsAvailable",
        "CassErrorLibRequestTimedOut",
        "CassErrorLibRequestQueueFull",
        "CassErrorLibNoStreams",
        "CassErrorLibWriteError",
        "CassErrorLibUnableToConnect",
        "CassErrorLibHostResolution",
        "CassErrorLibNoAvailableIoThread",
        "CassErrorServerIsBootstrapping",
        "CassErrorServerOverloaded",
        "CassErrorServerReadFailure",
        "CassErrorServerReadTimeout",
        "CassErrorServerServerError",
        "CassErrorServerUnavailable",
        "CassErrorServerUnprepared",
        "CassErrorServerWriteFailure",
        "CassErrorServerWriteTimeout",
        "CassExceptionConnectionError",
    }
)


class DatabaseAwayError(StateError):
    """The database does not answer, or cannot at this moment; later it may."""

    retryable = True
    failure_kind = FailureKind.OUTAGE


@dataclass(frozen=True)
class Failure:
    """An error of the client, looked at."""

    #: Whether the same request may succeed later.
    is_passing: bool
    #: One line: what the client or the server says.
    reason: str
    #: What to do about it; empty: nothing is known.
    mend: str


def look_at(error: BaseException) -> Failure:
    """Tell what an error of the client means.

    The client's classes are told apart by their names: it raises subclasses of its own base, and a few plain ones.
    """
    names = [kind.__name__ for kind in type(error).__mro__]
    reason = _once(" ".join(str(error).split())) or names[0]
    is_passing = any(name in _PASSING for name in names) or isinstance(error, TimeoutError)
    return Failure(is_passing, reason, _mend(names, reason.lower()))


def _once(reason: str) -> str:
    """A reason less its beginning, where that is said again: "Request timed out: Request timed out"."""
    beginning, _, rest = reason.partition(": ")
    return rest if rest.lower().startswith(beginning.lower()) else reason


def is_missing_table(error: BaseException) -> bool:
    """Return whether the database has refused a statement because it does not know a table."""
    return isinstance(error, StateError) and _lacks_table(str(error).lower())


def _lacks_table(reason: str) -> bool:
    return "unconfigured table" in reason or ("table" in reason and "does not exist" in reason)


def _mend(names: list[str], reason: str) -> str:
    if "CassErrorServerUnauthorized" in names or "permission" in reason:
        return "grant the permission to taskManager.cassandra.username, or name another user"
    if "CassErrorServerBadCredentials" in names or "authenticat" in reason or "credentials" in reason:
        return "mend taskManager.cassandra.username and password"
    if _lacks_table(reason):
        return "create the table (the log has its statement), or set taskManager.cassandra.creates_tables to true"
    if "keyspace" in reason and ("does not exist" in reason or "not found" in reason):
        return "create the keyspace, or set taskManager.cassandra.creates_tables to true"
    if "certificate" in reason or "ssl" in reason:
        return "correct taskManager.cassandra.tls_ca_file, and the certificate and key beside it"
    if "datacenter" in reason:
        return "see whether taskManager.cassandra.local_datacenter names a data centre whose nodes run"
    if "CassErrorLibRequestTimedOut" in names:
        return "see whether it runs and has time for it, or raise the time-out in taskManager.cassandra"
    if "CassErrorServerUnavailable" in names or "consistency level" in reason or "replicas" in reason:
        return "bring its nodes back, or lower taskManager.cassandra.dml_consistency"
    return ""


def told(failure: Failure, address: str, doing: str, mend: str = "", *, is_final: bool = False) -> StateError:
    """The error for the user.

    Args:
        failure: what the client raised.
        address: of the database.
        doing: completes "cannot ...".
        mend: what to do if the failure itself does not say.
        is_final: a job does not start again after it, although later the same request may succeed.
    """
    mend = (
        failure.mend
        or ("" if failure.is_passing else mend)
        or ("see whether it runs and taskManager.cassandra names its address" if failure.is_passing else "")
    )
    text = f"Cassandra at {address} cannot {doing}: {failure.reason}" + (f"; {mend}" if mend else "")
    if failure.is_passing:
        return away(text, is_final=is_final)
    error = StateError(text)
    error.failure_kind = FailureKind.PERMANENT
    return error


def away(text: str, *, is_final: bool) -> DatabaseAwayError:
    """The error of a database that does not answer; ``is_final``: a job does not start again after it."""
    error = DatabaseAwayError(text)
    if is_final:
        error.failure_kind = FailureKind.PERMANENT
    return error


def client_missing(error: ImportError) -> StateError:
    """The client is not installed."""
    missing = StateError(
        f"state in Cassandra needs the package acsylla ({error}): pip install 'weir[cassandra]'"
    )
    missing.failure_kind = FailureKind.PERMANENT
    return missing


#: A statement, a prepared statement or a result of the client, which has no types.
Untyped = Any
