"""What counts as a right output of the soak job: all of it, and what was written of it before a failure."""

import polars as pl
import pytest

import weir
from experiments.soak_check import WrongResultError, check_output, check_rows_so_far, write_events
from weir.author.operator import OperatorContext
from weir.operators.registry import create_operator
from weir.rows.records import with_system_columns

EVENTS = 200


@pytest.fixture
def events(tmp_path):
    return write_events(tmp_path / "events.jsonl", EVENTS, 7, 1)


@pytest.fixture
def rows(events):
    """What the job makes of them."""
    counts = pl.int_range(1, pl.len() + 1)
    frame = pl.read_ndjson(events).with_columns(odd=pl.col("id") % 2)
    frame = frame.with_columns(n=counts.over("server"), m=counts.over("server", "odd"))
    return frame.with_columns(highest=pl.col("id").cum_max().over("server", "odd"))


def write(rows, output, *, finish):
    """With the job's own sink; without the end of the stream as a process leaves it that was killed."""
    sink = create_operator(weir.JsonLinesSink(str(output)))
    sink.open(OperatorContext("j", "out", 5, 0, 1))
    (batch,) = rows.rechunk().to_arrow().to_batches()
    list(sink.process(with_system_columns(batch, 0, 0)))
    sink.flush()
    if finish:
        list(sink.finish())
        sink.snapshot(0)
        sink.commit(0)
    sink.close()


def test_a_whole_output_is_right_and_its_digest_is_that_of_the_counts(events, rows, tmp_path):
    write(rows, tmp_path / "a", finish=True)
    write(rows[::-1], tmp_path / "b", finish=True)
    assert check_output(events, tmp_path / "a") == check_output(events, tmp_path / "b")


@pytest.mark.parametrize("kept", [1, EVENTS // 2, EVENTS])
def test_some_of_the_rows_are_right_so_far(events, rows, tmp_path, kept):
    write(rows[-kept:], tmp_path / "out", finish=False)
    assert check_rows_so_far(events, tmp_path / "out") == kept
    with pytest.raises(WrongResultError, match="no rows"):
        check_output(events, tmp_path / "out")


def test_half_a_row_at_the_end_is_no_row(events, rows, tmp_path):
    write(rows[:10], tmp_path / "out", finish=False)
    (part,) = (tmp_path / "out").glob(".part-*")
    part.write_bytes(part.read_bytes()[:-5])
    assert check_rows_so_far(events, tmp_path / "out") == 9


def test_a_doubled_row_and_a_wrong_count_are_found(events, rows, tmp_path):
    write(rows[[*range(10), 3]], tmp_path / "doubled", finish=False)
    with pytest.raises(WrongResultError, match="11 rows with 10 ids"):
        check_rows_so_far(events, tmp_path / "doubled")
    wrong = rows[:10].with_columns(n=rows["n"][:10] + 1)
    write(wrong, tmp_path / "wrong", finish=False)
    with pytest.raises(WrongResultError, match="n should be"):
        check_rows_so_far(events, tmp_path / "wrong")
