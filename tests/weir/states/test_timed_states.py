"""What declarations of states that belong to times refuse, in words that say what to do."""

import datetime as dt

import polars as pl
import pytest

import weir
from weir.errors import GraphError


@pytest.mark.parametrize("size", ["1h", dt.timedelta(minutes=1, milliseconds=1)])
def test_windows_that_are_longer_than_their_retention_are_refused(size):
    """Kafka Streams refuses them, too: values would leave while rows of their window still come."""
    with pytest.raises(
        GraphError, match=r"retention of 60,000 ms: .*; give a retention of at least"
    ) as raised:

        class Visits(weir.KeyedProcess):
            per_hour = weir.WindowState(pl.Int64, retention="1m", size=size)

    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("size", [None, "1m", "10s"])
def test_windows_of_at_most_the_retention_are_not(size):
    state = weir.WindowState(pl.Int64, retention="1m", size=size)
    assert state.form == weir.WindowState(pl.Int64, retention="1m").form


def test_a_size_that_is_no_duration_is_refused():
    with pytest.raises(GraphError, match="'long' is not a duration"):
        weir.WindowState(pl.Int64, retention="1m", size="long")
