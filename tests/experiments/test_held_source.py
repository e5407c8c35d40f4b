"""A held source keeps its pace and does not end before it is let go; then all rows come, each once."""

import pytest

import weir
from experiments.held_reader import HeldLinesReader
from experiments.held_source import held, keep_back
from weir.author.operator import OperatorContext
from weir.operators.registry import create_reader
from weir.testing.manual_clock import ManualClock

ROWS = 500


@pytest.fixture
def events(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text("".join(f'{{"n": {number}}}\n' for number in range(ROWS)))
    return str(path)


def take(reader, clock, seconds):
    """Poll for so long a time; the rows that came, and whether it ended."""
    rows, until_us = [], clock.now_us() + seconds * 1e6
    while clock.now_us() < until_us:
        poll = reader.poll(100)
        if poll.finished:
            return rows, True
        if poll.batch is not None:
            rows += poll.batch.column("n").to_pylist()
        clock.advance_ms(1)
    return rows, False


@pytest.mark.parametrize(("rate", "before"), [(10, 20), (1000, ROWS), (None, ROWS)])
def test_it_ends_only_when_it_is_let_go(events, tmp_path, rate, before):
    release = tmp_path / "release"
    source = held(weir.JsonLines(events, schema={"n": int}, rate=rate), str(release))
    reader, clock = create_reader(source), ManualClock()
    assert isinstance(reader, HeldLinesReader)
    reader.open(OperatorContext("j", "s", 0, 0, 1, job_start_us=clock.now_us(), clock=clock))
    early, ended = take(reader, clock, 2)
    assert (early, ended) == (list(range(before)), False)
    release.touch()
    late, ended = take(reader, clock, 1)
    assert (early + late, ended) == (list(range(ROWS)), True)
    reader.close()


@pytest.mark.parametrize("rate", [1000, None])
def test_rows_that_are_kept_back_come_when_they_are_let_go(events, tmp_path, rate):
    release = tmp_path / "release"
    keep_back(release, 0.5)
    source = held(weir.JsonLines(events, schema={"n": int}, rate=rate), str(release))
    reader, clock = create_reader(source), ManualClock()
    reader.open(OperatorContext("j", "s", 0, 0, 1, job_start_us=clock.now_us(), clock=clock))
    rows, _ = take(reader, clock, 2)
    assert rows == list(range(ROWS // 2))
    keep_back(release, 0.2)
    more, ended = take(reader, clock, 1)
    assert (rows + more, ended) == (list(range(ROWS * 8 // 10)), False)
    release.touch()
    rest, ended = take(reader, clock, 1)
    assert (rows + more + rest, ended) == (list(range(ROWS)), True)
    reader.close()


def test_without_a_file_to_wait_for_it_is_the_source_itself(events):
    source = weir.JsonLines(events, schema={"n": int})
    assert held(source, "") is source
