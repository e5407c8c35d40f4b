"""No row of a bounded input is lost to the order in which its files are read: each has a watermark of its own."""

from __future__ import annotations

import gzip
import json
import random

import polars as pl
import pytest

import weir
from tests.effort import cases
from weir.author.operator import OperatorContext
from weir.operators.registry import create_reader
from weir.rows.records import WATERMARK_MIN_MS
from weir.rows.row_watermarks import RowWatermarks, late_ms
from weir.testing.manual_clock import ManualClock

SCHEMA = {"server": int, "at_ms": int}
FILES, ROWS = 4, 300
BOUND_MS = 50


def times_of(server: int) -> list[int]:
    """Nearly in order; each file is over the same hours."""
    dice = random.Random(server)
    return [1_000 + 100 * row + dice.randrange(400) for row in range(ROWS)]


def rows_of(server: int, times=None) -> list[dict[str, int]]:
    return [{"server": server, "at_ms": at} for at in (times or times_of(server))]


def write(directory, form, server, rows):
    path = directory / f"server{server}.{form}"
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if form == "jsonl":
        path.write_text(text)
    elif form == "jsonl.gz":
        path.write_bytes(gzip.compress(text.encode()))
    elif form == "csv":
        pl.DataFrame(rows).write_csv(path)
    elif form == "parquet":
        pl.DataFrame(rows).write_parquet(path, row_group_size=70)
    else:
        pl.DataFrame(rows).write_ipc(path, record_batch_size=70)


def source(directory, form, **settings):
    kind = {"jsonl": weir.JsonLines, "jsonl.gz": weir.JsonLines, "csv": weir.Csv, "parquet": weir.Parquet}
    return kind.get(form, weir.ArrowIpc)(str(directory), schema=SCHEMA, **settings)


FORMS = ["jsonl", "jsonl.gz", "csv", "parquet", "arrow"]


@pytest.mark.parametrize("parallelism", [1, 2, 4])
@pytest.mark.parametrize("form", FORMS)
def test_files_over_the_same_hours_lose_no_row(tmp_path, form, parallelism):
    for server in range(FILES):
        write(tmp_path, form, server, rows_of(server, sorted(times_of(server))))
    flow = weir.Dataflow("logs")
    watermark = weir.bounded_out_of_orderness("0s")
    logs = flow.source(
        "logs", source(tmp_path, form), parallelism=parallelism, event_time="at_ms", watermark=watermark
    )
    counts = logs.key_by("server").window(weir.tumbling("1s")).aggregate("counts", n=weir.count())
    assert sum(row["n"] for row in weir.run(counts)["counts"].to_dicts()) == FILES * ROWS


def test_a_source_with_a_limit_and_a_rate_loses_none_either(tmp_path):
    for server in range(FILES):
        write(tmp_path, "jsonl", server, rows_of(server, sorted(times_of(server))))
    flow = weir.Dataflow("logs")
    limited = source(tmp_path, "jsonl", rate=100_000, events=1_000)
    watermark = weir.bounded_out_of_orderness("0s")
    logs = flow.source("logs", limited, event_time=pl.col("at_ms"), watermark=watermark)
    counts = logs.key_by("server").window(weir.tumbling("1s")).aggregate("counts", n=weir.count())
    assert sum(row["n"] for row in weir.run(counts)["counts"].to_dicts()) == 1_000


class Reading:
    """One subtask's reader, with what is known of time after each poll."""

    def __init__(self, spec, restored=None, parallelism=1, index=0, clock=None):
        self.clock = clock or ManualClock(1_700_000_000_000_000)
        self.rows, self.late, self.times = [], set(), []
        self.reader = create_reader(spec)
        self.reader.open(
            OperatorContext(
                "job",
                "logs",
                0,
                index,
                parallelism,
                batch_size=64,
                job_start_us=self.clock.now_us(),
                clock=self.clock,
                restored=restored or {},
                subtask_indices=tuple(range(parallelism)),
                row_watermarks=RowWatermarks.LATE,
            )
        )

    def poll(self, rows_max=37):
        polled = self.reader.poll(rows_max)
        self.times.append(polled.event_time_ms_max)
        if polled.batch is not None:
            # Nothing that is not late is before what the watermark was.
            rows, found = polled.batch.to_pylist(), late_ms(polled.batch)
            late = [found is not None and found[n] != WATERMARK_MIN_MS for n in range(len(rows))]
            self.rows += [
                (row["server"], row["at_ms"], is_late) for row, is_late in zip(rows, late, strict=True)
            ]
        return polled

    def read(self, polls=10_000):
        for _ in range(polls):
            polled = self.poll()
            if polled.finished or polled.next_poll_us:
                break
        return self

    def stop(self):
        snapshot = json.loads(json.dumps(self.reader.snapshot()))
        self.reader.close()
        return snapshot


def strategy():
    return weir.bounded_out_of_orderness(f"{BOUND_MS}ms")


def spec_of(directory, form, **settings):
    flow = weir.Dataflow("logs")
    made = flow.source("logs", source(directory, form, **settings), event_time="at_ms", watermark=strategy())
    return made.node.spec


def plainly_late(server: int) -> list[tuple[int, int, bool]]:
    highest, found = -(10**9), []
    for at in times_of(server):
        highest = max(highest, at)
        found.append((server, at, at < highest - BOUND_MS))
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(cases(2)))
def test_the_same_rows_are_late_whatever_the_cut_and_the_restarts(tmp_path, form, seed):
    for server in range(FILES):
        write(tmp_path, form, server, rows_of(server))
    spec, dice = spec_of(tmp_path, form), random.Random(seed)
    rows, restored, told = [], None, WATERMARK_MIN_MS
    while True:
        reading = Reading(spec, restored)
        polls = dice.randrange(1, 12)
        ended = False
        for _ in range(polls):
            polled = reading.poll(dice.randrange(1, 60))
            ended = polled.finished
            if ended:
                break
            told_before, told = told, polled.event_time_ms_max
            assert told >= told_before
        rows += reading.rows
        if ended:
            break
        restored = {0: reading.stop()}
    expected = [row for server in range(FILES) for row in plainly_late(server)]
    assert any(row[2] for row in expected)
    assert sorted(rows) == sorted(expected)


def test_what_was_not_begun_holds_the_watermark_at_its_first_row(tmp_path):
    days = [[day * 10_000 + 10 * row for row in range(ROWS)] for day in range(1, 5)]
    for server, times in enumerate(days):
        write(tmp_path, "jsonl", server, rows_of(server, times))
    # The last file begins before all others end.
    write(tmp_path, "jsonl", 5, rows_of(5, [25_000, 45_000]))
    reading = Reading(spec_of(tmp_path, "jsonl")).read()
    in_order = [at for at in reading.times if at != WATERMARK_MIN_MS]
    assert in_order == sorted(in_order)
    assert max(reading.times[: 2 * ROWS // 37]) > 10_000, (
        "the first day's windows close while the second is read"
    )
    before_last = reading.times[: 4 * ROWS // 37]
    assert max(before_last) == 25_000


@pytest.mark.parametrize("form", FORMS)
def test_who_has_no_file_has_ended_before_the_first_row_and_the_others_know_that(tmp_path, form):
    write(tmp_path, form, 0, rows_of(0, [5_000, 6_000]))
    spec = spec_of(tmp_path, form)
    readers = [Reading(spec, parallelism=3, index=index).reader for index in range(3)]
    began = [reader.begin() for reader in readers]
    for reader in readers:
        reader.close()
    (first,) = (index for index in range(3) if not began[index].finished)
    assert began[first].event_time_ms_max == 5_000
    assert set(began[first].without) == {0, 1, 2} - {first}


@pytest.mark.parametrize("now", [2, 3])
@pytest.mark.parametrize("form", FORMS)
def test_so_they_do_after_a_restart(tmp_path, form, now):
    write(tmp_path, form, 0, rows_of(0, range(5_000, 5_060)))
    spec = spec_of(tmp_path, form)
    before = [Reading(spec, parallelism=3, index=index) for index in range(3)]
    for reading in before:
        reading.poll(5)
    restored = {index: reading.reader.snapshot() for index, reading in enumerate(before)}
    after = [Reading(spec, restored, parallelism=now, index=index) for index in range(now)]
    began = [reading.reader.begin() for reading in after]
    for reading in (*before, *after):
        reading.reader.close()
    (reads,) = (index for index in range(now) if not began[index].finished)
    assert set(began[reads].without) == set(range(now)) - {reads}


def test_a_directory_that_is_followed_holds_what_was_found_together(tmp_path):
    for server in (0, 1):
        write(tmp_path, "jsonl", server, rows_of(server))
    reading = Reading(spec_of(tmp_path, "jsonl", follow=True)).read()
    assert sorted(reading.rows) == sorted(plainly_late(0) + plainly_late(1))
    told = reading.times[-1]
    assert told == max(max(times_of(0)), max(times_of(1)))
    # What comes later begins where the watermark is.
    write(tmp_path, "jsonl", 2, rows_of(2, [told - BOUND_MS - 1, told - BOUND_MS, told + 500]))
    write(tmp_path, "jsonl", 3, rows_of(3, [told + 100, told + 700]))
    reading.clock.advance_ms(600)
    later = Reading(spec_of(tmp_path, "jsonl", follow=True), {0: reading.stop()}, clock=reading.clock).read()
    expected = [(2, told - BOUND_MS - 1, True), (2, told - BOUND_MS, False), (2, told + 500, False)]
    assert later.rows == [*expected, (3, told + 100, False), (3, told + 700, False)]
    assert later.times[-1] == told + 700


def test_files_that_grow_hold_until_they_are_idle(tmp_path):
    spec = spec_of(tmp_path, "jsonl", follow=True, grows=True)
    write(tmp_path, "jsonl", 0, rows_of(0, [100, 200]))
    write(tmp_path, "jsonl", 1, rows_of(1, [150, 900]))
    reading = Reading(spec).read()
    assert reading.times[-1] == 200
    reading.clock.advance_ms(1_100)
    with (tmp_path / "server1.jsonl").open("a") as file:
        file.write(json.dumps(rows_of(1, [950])[0]) + "\n")
    reading.read()
    assert reading.times[-1] == 950
    again = Reading(spec, {0: reading.stop()}, clock=reading.clock)
    again.poll()
    assert again.times == [950]


class Ready(weir.WatermarkGenerator):
    def on_batch(self, batch):
        return max(batch.column("at_ms").to_pylist())


def test_a_run_says_how_many_rows_were_late(tmp_path):
    write(tmp_path, "jsonl", 0, rows_of(0))
    flow = weir.Dataflow("logs")
    logs = flow.source("logs", source(tmp_path, "jsonl"), event_time="at_ms", watermark=strategy())
    counts = logs.key_by("server").window(weir.tumbling("10ms")).aggregate("counts", n=weir.count())
    result = weir.run(counts)
    counted = sum(row["n"] for row in result["counts"].to_dicts())
    assert result.late_rows == {"counts": ROWS - counted}
    assert f"{ROWS - counted} late at counts" in repr(result)


def test_each_file_has_a_generator_of_its_own(tmp_path):
    for server in range(FILES):
        write(tmp_path, "jsonl", server, rows_of(server, sorted(times_of(server))))
    flow = weir.Dataflow("logs")
    watermark = weir.custom_watermarks(Ready)
    logs = flow.source("logs", source(tmp_path, "jsonl"), event_time="at_ms", watermark=watermark)
    counts = logs.key_by("server").window(weir.tumbling("1s")).aggregate("counts", n=weir.count())
    assert sum(row["n"] for row in weir.run(counts)["counts"].to_dicts()) == FILES * ROWS


def test_the_form_of_times_in_a_snapshot(tmp_path):
    write(tmp_path, "jsonl", 0, rows_of(0, [100, 300, 200]))
    write(tmp_path, "jsonl", 1, rows_of(1, [150]))
    reading = Reading(spec_of(tmp_path, "jsonl"))
    reading.poll(2)
    snapshot = reading.stop()
    assert {name: snapshot[name] for name in ("version", "times_ms", "told_ms")} == {
        "version": 1,
        "times_ms": [[0, 300], [1, 150]],
        "told_ms": 150,
    }
