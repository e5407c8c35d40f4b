import errno

import pytest

from weir.errors import ConnectionLostError, InputError, StateError, WeirError, is_outage


def raised_from(cause):
    try:
        raise InputError("the sink failed") from cause
    except InputError as error:
        return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (None, False),
        (ValueError("a bug"), False),
        (StateError("damaged"), False),
        (ConnectionLostError("tm-a does not answer"), True),
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EACCES, "Permission denied"), False),
        (raised_from(OSError(errno.ENOSPC, "No space left on device")), True),
        (raised_from(raised_from(ConnectionLostError("silence"))), True),
        (raised_from(KeyError("x")), False),
    ],
)
def test_an_outage_is_found_behind_the_errors_that_it_led_to(error, expected):
    assert is_outage(error) is expected


def test_a_row_of_causes_that_ends_nowhere_is_no_outage():
    error = WeirError("turns in a circle")
    error.__cause__ = error
    assert not is_outage(error)
