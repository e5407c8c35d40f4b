"""What a source makes of event times, good and bad ones: the column or the expression, dead letters, watermarks."""

from __future__ import annotations

import json
from typing import ClassVar

import polars as pl
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import weir
from weir.author.operator import OperatorContext
from weir.errors import GraphError
from weir.operators.dead_letters import DeadLetterFile
from weir.operators.registry import create_reader
from weir.rows.records import EVENT_TIME_COLUMN, WATERMARK_MIN_MS
from weir.testing.manual_clock import ManualClock

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
FAR_MS = NOW_MS + 25 * HOUR_MS
SCHEMA = {"id": int, "at": weir.Nullable(int)}
BOUND = weir.bounded_out_of_orderness("2s")


def source_of(kind, path, rows, **settings):
    """A source of one kind that reads these rows."""
    if kind == "user":
        return weir.UserSource(lambda: Given(rows), schema=SCHEMA, **settings)
    table = pa.Table.from_pylist(rows, schema=pa.schema([("id", pa.int64()), ("at", pa.int64())]))
    if kind == "parquet":
        pq.write_table(table, path)
        return weir.Parquet(str(path), schema=SCHEMA, **settings)
    if kind == "arrow":
        feather.write_feather(table, str(path))
        return weir.ArrowIpc(str(path), schema=SCHEMA, **settings)
    if kind == "csv":
        path.write_text("id,at\n" + "".join(f"{row['id']},{row['at']}\n" for row in rows))
        return weir.Csv(str(path), schema=SCHEMA, **settings)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return weir.JsonLines(str(path), schema=SCHEMA, **settings)


class Given(weir.Source):
    def __init__(self, rows):
        self._rows = rows

    def read(self, split, position):
        at = position or 0
        while at < len(self._rows):
            at += 4
            yield self._rows[at - 4 : at], at


@pytest.fixture(autouse=True)
def closed():
    """Close every reading at the end."""
    yield
    while Reading.opened:
        reading = Reading.opened.pop()
        reading.reader.close()
        reading.letters.close()


class Reading:
    """One subtask of a source in this process."""

    opened: ClassVar = []

    def __init__(self, spec, tmp_path, restored=None):
        Reading.opened.append(self)
        self.letters = DeadLetterFile(tmp_path / "dead", "job", "source", 0)
        self.reader = create_reader(spec)
        self.rows, self.times, self.watermarks = [], [], []
        context = OperatorContext(
            "job",
            "source",
            0,
            0,
            1,
            clock=ManualClock(NOW_MS * 1000),
            dead_letters=self.letters,
            restored={} if restored is None else {0: restored},
            subtask_indices=(0,),
        )
        self.reader.open(context)
        self.event_time_ms_max = WATERMARK_MIN_MS

    def read(self, rows_max=3, polls=1_000):
        for _ in range(polls):
            polled = self.reader.poll(rows_max)
            if polled.batch is not None:
                self.rows += polled.batch.column("id").to_pylist()
                self.times += polled.batch.column(EVENT_TIME_COLUMN).to_pylist()
            self.event_time_ms_max = max(self.event_time_ms_max, polled.event_time_ms_max)
            self.watermarks.append(polled.watermark_ms)
            if polled.finished:
                break
        return self

    def told(self):
        try:
            return [json.loads(line) for line in self.letters.path.read_text().splitlines()]
        except FileNotFoundError:
            return []


KINDS = ("json", "csv", "parquet", "arrow", "user")


@pytest.mark.parametrize("kind", KINDS)
def test_a_time_far_in_the_future_is_a_bad_record_and_moves_no_watermark(kind, tmp_path):
    times = [NOW_MS, NOW_MS + 10, FAR_MS, NOW_MS + 20, 253_402_300_799_000, NOW_MS + 24 * HOUR_MS]
    rows = [{"id": number, "at": time} for number, time in enumerate(times)]
    spec = source_of(kind, tmp_path / "rows", rows, event_time="at").to_spec()
    reading = Reading(spec, tmp_path).read()
    assert reading.rows == [0, 1, 3, 5]
    assert reading.event_time_ms_max == NOW_MS + 24 * HOUR_MS
    letters = reading.told()
    assert [json.loads(letter["raw"])["id"] for letter in letters] == [2, 4]
    assert f"the event time {FAR_MS} is too far ahead of the clock" in letters[0]["reason"]
    assert reading.reader.rejected == 2


@pytest.mark.parametrize("kind", KINDS)
def test_bad_times_are_told_once_after_a_restart_in_the_middle(kind, tmp_path):
    rows = [{"id": n, "at": FAR_MS if n % 3 == 1 else NOW_MS + n} for n in range(20)]
    spec = source_of(kind, tmp_path / "rows", rows, event_time="at").to_spec()
    first = Reading(spec, tmp_path).read(rows_max=5, polls=2)
    position = first.reader.snapshot()
    before = list(first.rows)
    first.read(rows_max=5, polls=1)
    again = Reading(spec, tmp_path, restored=position).read()
    assert before + again.rows == [n for n in range(20) if n % 3 != 1]
    assert [json.loads(letter["raw"])["id"] for letter in again.told()] == [
        n for n in range(20) if n % 3 == 1
    ]


def test_where_a_bad_time_was_read_is_in_its_dead_letter(tmp_path):
    rows = [{"id": 1, "at": NOW_MS}, {"id": 2, "at": FAR_MS}]
    path = tmp_path / "rows"
    reading = Reading(source_of("json", path, rows, event_time="at").to_spec(), tmp_path).read()
    (letter,) = reading.told()
    assert (letter["source"], letter["position"]) == (str(path), len(path.read_text().splitlines()[0]) + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_times_before_the_epoch_are_times(kind, tmp_path):
    rows = [{"id": 1, "at": -5}, {"id": 2, "at": -86_400_000_000}, {"id": 3, "at": -3}]
    reading = Reading(source_of(kind, tmp_path / "rows", rows, event_time="at").to_spec(), tmp_path).read()
    assert reading.times == [-5, -86_400_000_000, -3]
    assert reading.event_time_ms_max == -3


@pytest.mark.parametrize("time_ms", [-(2**63), 2**63 - 1])
def test_what_is_no_time_is_bad_whatever_the_bound(time_ms, tmp_path):
    rows = [{"id": 1, "at": NOW_MS}, {"id": 2, "at": time_ms}]
    spec = source_of("parquet", tmp_path / "rows", rows, event_time="at").to_spec()
    flow = weir.Dataflow("job")
    stream = flow.source(None, spec, watermark=weir.bounded_out_of_orderness("1s", future_max=None))
    reading = Reading(stream.node.spec, tmp_path).read()
    assert reading.rows == [1]
    assert "is no time in ms since 1970" in reading.told()[0]["reason"]


def test_any_time_is_good_without_a_bound(tmp_path):
    rows = [{"id": 1, "at": FAR_MS}]
    flow = weir.Dataflow("job")
    source = source_of("json", tmp_path / "rows", rows)
    stream = flow.source(
        None, source, event_time="at", watermark=weir.bounded_out_of_orderness("1s", future_max=None)
    )
    assert Reading(stream.node.spec, tmp_path).read().rows == [1]


@pytest.mark.parametrize("kind", KINDS)
def test_an_expression_gives_the_event_time_and_its_nulls_are_bad_records(kind, tmp_path):
    rows = [{"id": n, "at": NOW_MS // 1000 + n} for n in range(4)]
    source = source_of(kind, tmp_path / "rows", rows)
    seconds = pl.when(pl.col("id") != 2).then(pl.col("at") * 1000)
    spec = weir.Dataflow("job").source(None, source, event_time=seconds).node.spec
    reading = Reading(spec, tmp_path).read()
    assert reading.rows == [0, 1, 3]
    assert reading.times == [NOW_MS + 1000 * n for n in (0, 1, 3)]
    (letter,) = reading.told()
    assert letter["reason"].endswith("the event time is null")


def test_what_an_expression_reads_is_decoded_though_nobody_else_wants_it(tmp_path):
    rows = [{"id": 1, "at": NOW_MS}]
    flow = weir.Dataflow("job")
    stream = flow.source("rows", source_of("json", tmp_path / "rows", rows), event_time=pl.col("at") - 5)
    found = weir.run(stream.select("ids", "id"), collect="ids")["ids"]
    assert found.to_polars()["id"].to_list() == [1]
    assert stream.node.spec.reading(frozenset(["id"])).schema_read.names == ["id", "at"]


class EveryThird(weir.WatermarkGenerator):
    """The time of every third row is complete; goes back now and then."""

    def __init__(self):
        self._count = 0

    def on_batch(self, batch):
        self._count += batch.num_rows
        at = batch.column("at")[batch.num_rows - 1].as_py()
        return None if self._count < 3 else at if self._count % 2 else at - 1_000


def test_a_generator_makes_the_watermarks_and_they_never_go_back(tmp_path):
    rows = [{"id": n, "at": NOW_MS + n} for n in range(6)]
    flow = weir.Dataflow("job")
    source = source_of("json", tmp_path / "rows", rows)
    stream = flow.source(None, source, event_time="at", watermark=weir.custom_watermarks(EveryThird))
    reading = Reading(stream.node.spec, tmp_path).read(rows_max=1)
    assert reading.watermarks[:6] == [None, None, NOW_MS + 2, NOW_MS + 2, NOW_MS + 4, NOW_MS + 4]
    assert reading.event_time_ms_max == WATERMARK_MIN_MS


class TwoSplits(weir.Source):
    def splits(self):
        return [0, 1]

    def read(self, split, position):
        for at in range(position or 0, 3):
            yield [{"id": at, "at": NOW_MS + at + 100 * split}], at + 1


def test_a_generator_of_each_split_and_the_one_that_is_behind_counts(tmp_path):
    flow = weir.Dataflow("job")
    stream = flow.source(
        None,
        weir.UserSource(TwoSplits, schema=SCHEMA),
        event_time="at",
        watermark=weir.custom_watermarks(EveryThird),
    )
    reading = Reading(stream.node.spec, tmp_path).read()
    # A split says nothing before its third row; by then the other one has ended, or is behind.
    assert next(w for w in reading.watermarks if w is not None) == NOW_MS + 2


def test_a_watermark_of_another_type_is_an_error(tmp_path):
    class Wrong(weir.WatermarkGenerator):
        def on_batch(self, batch):
            return "soon"

    flow = weir.Dataflow("job")
    source = source_of("json", tmp_path / "rows", [{"id": 1, "at": NOW_MS}])
    stream = flow.source(None, source, event_time="at", watermark=weir.custom_watermarks(Wrong))
    with pytest.raises(TypeError, match="on_batch returns a watermark in ms or None, not str"):
        Reading(stream.node.spec, tmp_path).read()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"watermark": "2s"}, "write watermark=weir.bounded_out_of_orderness"),
        ({"event_time": 7}, "event_time is 7; give the name of a column or a Polars expression"),
        ({"event_time": pl.col("when")}, "there is no column 'when'"),
        ({"event_time": pl.col("at").cast(pl.Float64)}, "the event time is Float64; it must be integer ms"),
        ({"event_time": pl.col("at").cast(pl.Datetime("ms"))}, r"as \.dt\.epoch\('ms'\) gives"),
        ({"event_time": pl.col("at").cum_sum()}, "depends on the other rows"),
    ],
)
def test_mistakes_are_told_when_the_graph_is_built(settings, message):
    source = weir.JsonLines("rows", schema=SCHEMA)
    with pytest.raises(GraphError, match=message):
        weir.Dataflow("job").source("rows", source, **settings)


def test_a_bound_is_a_duration():
    assert weir.bounded_out_of_orderness("0s").out_of_orderness_ms == 0
    with pytest.raises(GraphError, match="bound: '2 sec' is not a duration"):
        weir.bounded_out_of_orderness("2 sec")
    with pytest.raises(GraphError, match="custom_watermarks takes the class"):
        weir.custom_watermarks(7)


def test_a_graph_without_the_new_settings_keeps_its_fingerprint():
    spec = weir.JsonLines("rows", schema=SCHEMA, event_time="at").to_spec()
    assert not {"watermark", "event_time_expression"} & set(spec.describe())
    untimed = weir.JsonLines("rows", schema=SCHEMA)
    told = (
        weir.Dataflow("job")
        .source("rows", untimed, event_time=pl.col("at") * 2, watermark=BOUND)
        .node.spec.describe()
    )
    assert told["watermark"]["out_of_orderness_ms"] == 2_000
    assert "at" in told["event_time_expression"]


def test_the_bound_of_a_source_is_that_of_its_watermarks(tmp_path):
    """Rows of a source with a bound of its own are late by that bound, not by the job's."""
    rows = [{"id": n, "at": NOW_MS + 1_000 * n} for n in range(5)]
    seen = []

    class Watch(weir.Operator):
        def process(self, batch):
            yield batch

        def on_watermark(self, time_ms):
            seen.append(time_ms)
            return ()

    flow = weir.Dataflow("job")
    source = source_of("json", tmp_path / "rows", rows)
    stream = flow.source("rows", source, event_time="at", watermark=weir.bounded_out_of_orderness("3s"))
    weir.run(stream.apply("watch", Watch), collect="watch")
    # No row is earlier than the first one, which is known before it is read.
    assert seen == [NOW_MS - 3_000, NOW_MS + 4_000 - 3_000]
