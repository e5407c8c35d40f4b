import errno
import sqlite3

import pytest

from weir.errors import (
    ConnectionLostError,
    FailureKind,
    InputError,
    StateError,
    StateMismatchError,
    UserFunctionError,
    WeirError,
    kind_in_step,
    kind_of,
)

OUTAGE, ROWS, PERMANENT, OTHER = (
    FailureKind.OUTAGE,
    FailureKind.ROWS,
    FailureKind.PERMANENT,
    FailureKind.OTHER,
)
FULL = OSError(errno.ENOSPC, "No space left on device")
ABSENT = FileNotFoundError(errno.ENOENT, "No such file or directory")


def raised_from(cause, error=InputError):
    try:
        raise error("the sink failed") from cause
    except error as raised:
        return raised


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (None, OTHER),
        (ValueError("a bug"), OTHER),
        (StateError("damaged"), OTHER),
        (StateMismatchError("another aggregate"), PERMANENT),
        (ConnectionLostError("tm-a does not answer"), OUTAGE),
        (FULL, OUTAGE),
        (OSError(errno.EACCES, "Permission denied"), OUTAGE),
        (TimeoutError(), OUTAGE),
        (IsADirectoryError(errno.EISDIR, "Is a directory"), OTHER),
        (SystemExit(3), PERMANENT),
        (raised_from(FULL), OUTAGE),
        (raised_from(raised_from(ConnectionLostError("silence"))), OUTAGE),
        (raised_from(KeyError("x")), PERMANENT),
        (raised_from(ABSENT), PERMANENT),
        (raised_from(TimeoutError()), OUTAGE),
        (raised_from(ConnectionRefusedError(errno.ECONNREFUSED, "refused"), StateError), OUTAGE),
        (raised_from(ABSENT, UserFunctionError), OUTAGE),
        (raised_from(KeyError("x"), UserFunctionError), ROWS),
    ],
)
def test_what_an_error_says_about_the_next_attempt(error, expected):
    assert kind_of(error) is expected


@pytest.mark.parametrize(
    ("error", "is_sink", "takes_rows", "expected"),
    [
        (ValueError("bad row"), False, True, ROWS),
        (ValueError("bad state"), False, False, OTHER),
        (ValueError("any"), True, True, OUTAGE),
        (sqlite3.OperationalError("database is locked"), True, False, OUTAGE),
        (AttributeError("no such method"), True, True, OTHER),
        (KeyError("name"), True, True, OTHER),
        (IndexError("out of range"), True, False, OTHER),
        (AssertionError(), True, True, OTHER),
        (ZeroDivisionError("division by zero"), True, True, OTHER),
        (UnboundLocalError("x"), True, True, OTHER),
        (RuntimeError("cannot reach the server"), True, True, OUTAGE),
        (ABSENT, True, True, OUTAGE),
        (ABSENT, False, True, OTHER),
        (OSError(errno.EACCES, "Permission denied"), False, False, OTHER),
        (raised_from(ABSENT, UserFunctionError), False, True, OTHER),
        (raised_from(raised_from(ConnectionLostError("silence"), UserFunctionError)), False, True, OUTAGE),
        (OSError(errno.EIO, "I/O error"), False, True, OUTAGE),
        (UserFunctionError("step 'x': raised"), False, True, ROWS),
        (UserFunctionError("step 'x': raised"), False, False, OTHER),
        (raised_from(TimeoutError(), UserFunctionError), False, True, OUTAGE),
        (SystemExit(0), False, True, PERMANENT),
        (MemoryError(), False, True, OTHER),
        (InputError("holds results of an earlier run"), True, True, PERMANENT),
        (StateMismatchError("another aggregate"), False, True, PERMANENT),
        (StateError("the store is closed"), False, True, OTHER),
    ],
)
def test_what_a_step_raises(error, is_sink, takes_rows, expected):
    assert kind_in_step(error, is_sink=is_sink, takes_rows=takes_rows) is expected


def test_a_row_of_causes_that_ends_nowhere_is_no_outage():
    error = WeirError("turns in a circle")
    error.__cause__ = error
    assert kind_of(error) is OTHER
