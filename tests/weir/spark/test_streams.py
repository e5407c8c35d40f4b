"""Streams of Spark as a whole: what ends them, and what they tell."""

import csv
import json
from contextlib import nullcontext

import polars as pl
import pytest

import weir
from tests.effort import cases
from tests.weir.operators.sources.test_json_decode import BAD, GOOD
from weir.rows.records import EVENT_TIME_COLUMN
from weir.spark.running import run_batch, run_stream
from weir.spark.session import SparkFailedError
from weir.spark.translation import job_on_spark
from weir.sql.program import build_program

pytestmark = pytest.mark.spark
SCHEMA = {"k": int, "at": int, "v": int}


def broken(batch):
    raise ValueError("thirteen")


def flow_over(directory, **settings):
    (directory / "in").mkdir()
    (directory / "in" / "rows.jsonl").write_text('{"k": 1, "at": 1000, "v": 1}\n{"k": 1\n{"k": 1, "v": 1}\n')
    flow = weir.Dataflow("job")
    lines = weir.JsonLines(str(directory / "in"), schema=SCHEMA, **settings)
    return flow, flow.source("rows", lines, event_time="at")


def test_one_query_that_fails_ends_all(spark, tmp_path):
    flow, rows = flow_over(tmp_path, follow=True)
    # It follows its source, and is the first that is waited for.
    rows.sink("first", weir.Blackhole())
    rows.map_batches("broken", broken, SCHEMA).sink("second", weir.Blackhole())
    with pytest.raises(SparkFailedError, match="thirteen"):
        run_stream(spark, flow.build_local(), str(tmp_path / "checkpoints"))
    assert not spark.streams.active


def test_bad_records_are_told(spark, tmp_path):
    flow, rows = flow_over(tmp_path)
    rows.filter("kept", pl.col("v") > 0).sink("out", weir.Collect())
    told, collected = [], []
    run_stream(
        spark,
        flow.build_local(),
        str(tmp_path / "checkpoints"),
        lambda step, table: collected.append(table.num_rows),
        told.append,
    )
    assert collected == [1]
    assert told[-1] == {"rows": {'a record does not fit the schema: {"k": 1': 2}}


def put_aside_of(spark, flow, mode, place):
    if mode == "batch":
        return run_batch(spark, flow.build_local()).put_aside
    told = []
    run_stream(spark, flow.build_local(), str(place), put_aside=told.append)
    return told[-1]


def test_a_batch_ends_of_which_spark_knows_that_no_row_is_left(spark, tmp_path):
    flow, rows = flow_over(tmp_path)
    rows.filter("none", pl.lit(False)).sink("out", weir.Blackhole())
    assert run_batch(spark, flow.build_local()).put_aside == {}


#: An expression that is Spark's, and one that runs in its tasks.
STEPS = {"sparks": lambda time: time, "weirs": lambda time: time.clip(0)}
WAYS = [("streaming", "sparks"), ("batch", "weirs")]


@pytest.mark.parametrize(("mode", "step"), cases(WAYS, [*WAYS, ("streaming", "weirs"), ("batch", "sparks")]))
def test_rows_that_a_step_puts_aside_are_told_once_however_many_sinks_are_behind_it(
    spark, tmp_path, mode, step
):
    (tmp_path / "in").mkdir()
    lines = "".join(f'{{"k": 1, "at": {v * 1000}, "v": {v}}}\n' for v in range(5))
    (tmp_path / "in" / "rows.jsonl").write_text(lines)
    flow = weir.Dataflow("job")
    rows = flow.source("rows", weir.JsonLines(str(tmp_path / "in"), schema=SCHEMA), event_time="at")
    time = STEPS[step](pl.when(pl.col("v") < 2).then(None).otherwise(pl.col("at")))
    timed = rows.assign_event_time("timed", time)
    timed.sink("first", weir.Blackhole())
    timed.filter("kept", pl.col("v") > 2).sink("second", weir.Blackhole())
    timed.filter("others", pl.col("v") < 3).sink("third", weir.Blackhole())
    told = put_aside_of(spark, flow, mode, tmp_path / "checkpoints")
    [(reason, count)] = told.pop("timed").items()
    assert "the event time is null" in reason
    assert count == 2
    assert told == {}


def test_a_stream_of_sql_reads_times_and_decimals_as_weir_does(spark, tmp_path):
    folder = tmp_path / "in" / "day=2021-03-28"
    folder.mkdir(parents=True)
    times = [
        "1969-12-31T23:59:59.9995",
        "2021-03-28 00:00:01",
        "2021-03-28T00:00:02.5",
        "2026-01-01T00:00:00",
    ]
    lines = [f'{{"at": "{time}", "price": "{n}.05", "seen": "2020-02-29"}}' for n, time in enumerate(times)]
    (folder / "rows.jsonl").write_text("\n".join([*lines[:1], '{"at": 3}', *lines[1:]]) + "\n")
    text = f"""
        CREATE SOURCE rows (at TIMESTAMP, price DECIMAL(9, 2), seen DATE, day VARCHAR, WATERMARK FOR at AS at)
            WITH (connector = 'json', path = '{tmp_path}/in/*/*.jsonl');
        CREATE SINK out WITH (connector = 'collect') AS SELECT day, seen, window_start, SUM(price) AS total
            FROM TUMBLE(rows, at, INTERVAL '2' SECOND) GROUP BY day, seen, window_start, window_end;
        CREATE SINK plain WITH (connector = 'collect') AS SELECT at, price FROM rows;
        """
    flow = build_program("rows.sql", text, "rows")
    expected = {name: weir.run(flow)[name].to_polars() for name in ("out", "plain")}
    collected, told = {"out": [], "plain": []}, []
    run_stream(
        spark,
        build_program("rows.sql", text, "rows").build_local(),
        str(tmp_path / "checkpoints"),
        lambda step, table: collected[step].append(pl.DataFrame(table.drop_columns([EVENT_TIME_COLUMN]))),
        told.append,
    )
    assert expected["plain"].height == 4
    assert pl.concat(collected["plain"]).sort("at").equals(expected["plain"].sort("at"))
    # The last window is one that no later row has passed.
    said = pl.concat(collected["out"]).sort("window_start")
    assert said.equals(expected["out"].sort("window_start").head(3))
    assert [sum(reasons.values()) for reasons in told[-1].values()] == [1]


#: By connector, how rows of its files are read as texts.
FILES = {
    "json": lambda path: [json.loads(line) for line in path.read_text().splitlines()],
    "csv": lambda path: [*csv.DictReader(path.open(newline=""))],
}


@pytest.mark.parametrize("mode", ["batch", "streaming"])
@pytest.mark.parametrize("connector", FILES)
def test_files_of_texts_have_all_rows_as_weir_writes_them_however_many_tasks_and_triggers_write(
    spark, tmp_path, connector, mode
):
    (tmp_path / "in").mkdir()
    for file in range(3):
        rows = ({"k": f" {n} ", "at": file * 100_000 + n * 1_000, "x": n / 4, "no": None} for n in range(20))
        (tmp_path / "in" / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def flow_to(out):
        text = f"""
            CREATE SOURCE rows (k VARCHAR, at BIGINT, x DOUBLE, no DATE, WATERMARK FOR at AS at)
                WITH (connector = 'json', path = '{tmp_path}/in');
            CREATE SINK plain WITH (connector = '{connector}', path = '{out}/plain')
                AS SELECT k, x, no, TIMESTAMP_MILLIS(at) AS time, CAST(x AS DECIMAL(9, 2)) AS m FROM rows;
            CREATE SINK windows WITH (connector = '{connector}', path = '{out}/windows', partition_by = 'k')
                AS SELECT k, window_start, SUM(x) AS x FROM TUMBLE(rows, at, INTERVAL '10' SECOND)
                GROUP BY k, window_start, window_end;
            """
        return build_program("rows.sql", text, "rows")

    def written(out, sink):
        found = [path for path in (tmp_path / out / sink).rglob("part-*") if path.is_file()]
        return sorted(
            str({"in": path.parent.name, **row}) for path in found for row in FILES[connector](path)
        )

    weir.run(flow_to(tmp_path / "weir"))
    graph = flow_to(tmp_path / "spark").build_local()
    if mode == "batch":
        run_batch(spark, graph)
    else:
        run_stream(spark, graph, str(tmp_path / "checkpoints"))
    assert written("spark", "plain") == written("weir", "plain")
    told = written("spark", "windows")
    # A stream has not told the last windows.
    assert len(told) >= 50
    assert set(told) <= set(written("weir", "windows"))
    assert mode == "streaming" or len(told) == len(written("weir", "windows"))


@pytest.mark.parametrize("how", ["FULL", "LEFT", "RIGHT"])
def test_nulls_are_no_key_of_a_join_in_a_stream(spark, tmp_path, how):
    lines = [{"k": k, "at": n * 1_000} for n, k in enumerate([None, 1, None, 2, 1], 1)] + [
        {"k": 9, "at": 900_000}
    ]
    for side in "ab":
        (tmp_path / f"{side}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    sources = [
        f"CREATE SOURCE {side} (k BIGINT, at BIGINT, WATERMARK FOR at AS at) "
        f"WITH (connector = 'json', path = '{tmp_path}/{side}.jsonl')"
        for side in "ab"
    ]
    sink = f"""CREATE SINK out WITH (connector = 'collect') AS SELECT a.at AS one, b.at AS two
        FROM a {how} JOIN b ON a.k = b.k AND b.at BETWEEN a.at AND a.at + INTERVAL '5' SECOND"""
    flow = build_program("join.sql", "; ".join([*sources, sink]), "join")
    found = []
    run_stream(
        spark,
        flow.build_local(),
        str(tmp_path / "checkpoints"),
        lambda step, table: found.extend((row["one"], row["two"]) for row in table.to_pylist()),
    )
    expected = [(row["one"], row["two"]) for row in weir.run(flow)["out"].to_dicts()]
    past = 900_000
    assert sorted((pair for pair in found if past not in pair), key=str) == sorted(
        (pair for pair in expected if past not in pair), key=str
    )


#: Filters, of Spark and in its tasks, and steps of which the rows have their times.
FILTERS = {
    "sparks": lambda rows: rows.filter(f"{rows.node.name}_kept", pl.col("v") > 0),
    "weirs": lambda rows: rows.filter(f"{rows.node.name}_kept", pl.col("v").clip(0) > 0),
    "behind_new_times": lambda rows: FILTERS["sparks"](
        rows.assign_event_time(f"{rows.node.name}_timed", pl.col("at") + 0)
    ),
    "of_one_side": lambda rows: rows if rows.node.name == "left" else FILTERS["sparks"](rows),
}


@pytest.mark.parametrize("way", cases(["sparks", "weirs"], FILTERS))
def test_rows_that_a_filter_drops_count_for_the_watermark_of_a_stream(spark, tmp_path, way):
    # Half of the left rows have no partner; the last rows of each side go to no join: dropped, or without a key.
    sides = {
        "left": [{"k": n, "at": n * 1_000, "v": n < 20} for n in range(1, 40)],
        "right": [
            {"k": n if n < 30 else None, "at": n * 1_000, "v": n < 20 or n > 30} for n in range(2, 40, 2)
        ],
    }
    flow, streams = weir.Dataflow("job"), []
    for side, rows in sides.items():
        path = tmp_path / f"{side}.jsonl"
        path.write_text("".join(json.dumps({**row, "v": int(row["v"])}) + "\n" for row in rows))
        strategy = weir.bounded_out_of_orderness("0s")
        source = flow.source(
            side,
            weir.JsonLines(str(path), schema={**SCHEMA, "k": weir.Nullable(int)}),
            event_time="at",
            watermark=strategy,
        )
        streams.append(FILTERS[way](source))
    left, right = (stream.key_by("k") for stream in streams)
    left.join("joined", right, how="left", within=("0s", "5s")).sink("pairs", weir.Collect())
    counts = streams[0].key_by("v").window(weir.tumbling("2s")).aggregate("counts", n=weir.count())
    counts.sink("windows", weir.Collect())
    graph = flow.build_local()
    assert not job_on_spark(graph, "streaming").keeps_state
    found = {"pairs": [], "windows": []}
    run_stream(
        spark,
        graph,
        str(tmp_path / "checkpoints"),
        lambda step, table: found[step].extend(table.drop_columns([EVENT_TIME_COLUMN]).to_pylist()),
    )
    expected = weir.run(flow)
    # A source that ends leaves untold what no later row has passed.
    last_ms = min(rows[-1]["at"] for rows in sides.values())
    for name, rows in found.items():
        told, wanted = (
            [row for row in all_rows if row.get("at", 0) + 5_000 < last_ms >= row.get("window_end", 0)]
            for all_rows in (rows, expected[name].to_dicts())
        )
        assert sorted(told, key=str) == sorted(wanted, key=str), name
    assert len(found["pairs"]) >= 19


#: Records that Weir puts aside, and Spark takes: docs/runners.md has them.
TAKEN = {
    *("integer for string", "list for string", "object for string", "lone surrogate"),
    *("trailing garbage", "two objects", "NUL behind", "duplicate", "duplicate by escape"),
    *("lone surrogate in an ignored field", "overlong UTF-8", "UTF-16"),
}


def test_records_that_are_bad_elsewhere_and_taken_by_spark_are_those_of_the_page(spark, tmp_path):
    schema = {"number": int, "id": int, "name": str, "load": float, "up": bool, "port": int, "long_name": str}
    of_other_types = ("out of the narrow range", "negative for unsigned", "UTF-16")
    kinds = {name: line for name, line in BAD.items() if line[:1] == b"{" and name not in of_other_types}
    lines = [b'{"number": %d, ' % number + line[1:] for number, line in enumerate(kinds.values())]
    utf_16 = f'{{"number": {len(lines)}, {GOOD[1:]}'.encode("utf-16-le")
    names = [*kinds, "UTF-16"]
    # As many good ones: a source with few of them fails.
    good = range(len(names), 2 * len(names) + 1)
    lines += [utf_16, *(f'{{"number": {number}, {GOOD[1:]}'.encode() for number in good)]
    (tmp_path / "rows.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    flow = weir.Dataflow("job")
    source = weir.JsonLines(str(tmp_path / "rows.jsonl"), schema=schema)
    flow.source("rows", source, event_time="number").sink("out", weir.Collect())
    assert [row["number"] for row in weir.run(flow)["out"].to_dicts()] == [*good]
    result = run_batch(spark, flow.build_local())
    found = result.collected["out"].column("number").to_pylist()
    taken = {names[number] for number in found if number not in good}
    assert taken == TAKEN
    assert sum(result.put_aside["rows"].values()) == len(names) - len(taken)


@pytest.mark.parametrize("kind", [int, weir.Nullable(int)])
def test_a_bad_value_is_put_aside_with_its_record_whether_or_not_null_is_good(spark, tmp_path, kind):
    lines = [*(f'{{"at": {at}, "x": 1, "s": "a"}}' for at in range(5)), '{"at": 5, "x": "b", "s": "a"}']
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    flow = weir.Dataflow("job")
    schema = {"at": int, "x": kind, "s": str}
    rows = flow.source("rows", weir.JsonLines(str(tmp_path / "rows.jsonl"), schema=schema), event_time="at")
    rows.select("some", "x").sink("out", weir.Collect())
    result = run_batch(spark, flow.build_local())
    assert result.collected["out"].column("x").to_pylist() == [1] * 5
    assert result.put_aside == {"rows": {f"a record does not fit the schema: {lines[5]}": 1}}


def test_times_with_a_zone_keep_it_in_files(spark, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"at": 1500}\n')
    flow = weir.Dataflow("job")
    rows = flow.source("rows", weir.JsonLines(str(tmp_path / "rows.jsonl"), schema={"at": int}))
    times = rows.select(
        "times", at=pl.from_epoch("at", "ms").dt.replace_time_zone("UTC").dt.cast_time_unit("us")
    )
    times.sink("out", weir.ParquetSink(str(tmp_path / "out")))
    run_batch(spark, flow.build_local())
    found = pl.concat([pl.read_parquet(each) for each in (tmp_path / "out").rglob("*.parquet")])
    assert found.schema == {"at": pl.Datetime("us", "UTC")}
    assert found["at"].dt.epoch("ms").to_list() == [1_500]


class Counting(weir.KeyedProcess):
    """A count of each key, which is told."""

    n = weir.ValueState(pl.Int64, default=0)

    def process(self, key, row, context):
        self.n.value += 1
        if row["v"] < 0:
            raise ValueError(f"cannot stand {row['v']}")
        yield {"k": key[0], "n": self.n.value}


@pytest.mark.parametrize("fails", [False, True])
def test_what_nobody_collects_is_made_all_the_same(spark, tmp_path, fails):
    """Of rows that have the time of reading: of that Spark knows that it is never null."""
    lines = [{"k": number % 3, "v": -1 if fails and number == 7 else number} for number in range(10)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    flow = weir.Dataflow("counting")
    rows = flow.source("rows", weir.JsonLines(str(tmp_path / "in.jsonl"), schema={"k": int, "v": int}))
    counts = rows.key_by("k").process("counts", Counting, {"k": int, "n": int})
    counts.sink("out", weir.Collect())
    cannot = pytest.raises(SparkFailedError, match="process raised ValueError: cannot stand -1")
    with cannot if fails else nullcontext():
        run_stream(spark, flow.build_local(), str(tmp_path / "checkpoints"))
