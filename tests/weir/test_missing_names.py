"""Names and arguments that streams have not got: told in one line with what to write, and ``hasattr`` says False."""

import traceback

import polars as pl
import pytest

import weir
from weir import testing

SCHEMA = {"k": str, "x": int}


def rows():
    return weir.Dataflow("job").source("rows", weir.JsonLines("none", schema=SCHEMA))


FRAMES = {
    "flow": lambda: rows().flow,
    "stream": rows,
    "keyed": lambda: rows().key_by("k"),
    "windowed": lambda: rows().key_by("k").window(weir.tumbling("1s")),
    "all rows": lambda: rows().window_all(weir.tumbling("1s")),
    "counted": lambda: rows().key_by("k").count_window(3),
    "results": lambda: rows().key_by("k").window(weir.tumbling("1s")).aggregate("w", n=weir.count()),
}


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize(
    "name", ["groupby", "sum", "nothing_of_that_kind", "_private", "__dataframe__", "run"]
)
def test_what_is_not_there_is_an_attribute_error(frame, name):
    made = FRAMES[frame]()
    assert not hasattr(made, name)
    assert getattr(made, name, 3) == 3
    with pytest.raises(AttributeError, match=name):
        getattr(made, name)


def test_what_streams_have_and_windows_have_not():
    for frame in ("windowed", "all rows", "counted"):
        assert not hasattr(FRAMES[frame](), "side_output")
    assert not hasattr(rows(), "top")
    assert hasattr(rows().key_by("k"), "top")
    assert not hasattr(rows().flow, "filter")


@pytest.mark.parametrize(
    ("name", "mend"),
    [
        ("groupby", r'did you mean key_by\("column"\)\?'),
        ("group_by", r'did you mean key_by\("column"\)\?'),
        ("groupBy", r'did you mean key_by\("column"\)\?'),
        ("keyBy", "did you mean 'key_by'"),
        ("flatMap", "did you mean 'flat_map'"),
        ("sum", r'did you mean key_by\("column"\).aggregate\("name", total=weir.sum\("x"\)\)'),
        ("agg", r"aggregate\("),
        ("mean", r"aggregate\("),
        ("where", r'did you mean filter\("name", pl.col\("x"\) > 0\)'),
        ("withColumn", r'did you mean with_columns\("name", total='),
        ("sort", r"no end to sort at; .*top\("),
        ("head", r'weir.run\(flow, collect="name"\)\["name"\]'),
        ("collect", r'weir.run\(flow, collect="name"\)\["name"\]'),
        ("show", r'sink\("out", weir.Print\(\)\)'),
        ("writeStream", r'did you mean sink\("out"'),
        ("assignTimestampsAndWatermarks", r"assign_event_time\("),
        ("fliter", "did you mean 'filter'"),
        (
            "count",
            r'step \'rows\': count goes by key, and this stream has none; call key_by\("column"\).count',
        ),
        ("columns", "did you mean schema"),
    ],
)
def test_names_of_other_engines(name, mend):
    with pytest.raises(weir.GraphError, match=mend) as found:
        getattr(rows(), name)
    # Python's own guess would be another line.
    assert len("".join(traceback.format_exception_only(found.value)).splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "mend"),
    [
        ("filter", r"a dataflow has no 'filter', its streams have: flow.source\(.*\).filter\("),
        ("read_json", r'did you mean flow.source\("name", weir.JsonLines\('),
        ("execute", r"did you mean weir.run\(flow\)"),
        ("biuld", "did you mean 'build'"),
    ],
)
def test_names_of_dataflows(name, mend):
    with pytest.raises(weir.GraphError, match=mend):
        getattr(rows().flow, name)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rows().filter(pl.col("x") > 0), r'filter: .* step, got Expr; write filter\("name", pl'),
        (lambda: rows().with_columns(y=pl.col("x")), r'with_columns: .*step; write with_columns\("name", total='),
        (lambda: rows().select(pl.col("x")), r'select\("name", "a", "b"\)'),
        (lambda: rows().rename({"x": "y"}), r'rename\("name", \{"old": "new"\}\)'),
        (lambda: rows().map(lambda row: row), r'got function; write map\("name", function\)'),
        (lambda: rows().map_batches(lambda batch: batch), r'write map_batches\("name", function\)'),
        (lambda: rows().flat_map(lambda row: row), r'flat_map\("name", function, schema\)|flat_map\("name", function'),
        (lambda: rows().union(rows()), r'union\("name", other\)'),
        (lambda: rows().sink(weir.Print()), r'got \w+; write sink\("name", weir.Print\(\)\)'),
        (lambda: rows().assign_event_time(pl.col("x")), r'assign_event_time\("name", "column"\)'),
        (lambda: rows().key_by("k").count(), r'count: the first argument .* step; write count\("name"\)'),
        (lambda: rows().key_by("k").aggregate(n=weir.count()), r'aggregate\("name", n=weir.count\(\)'),
        (lambda: rows().key_by("k").top(by="x", rows=1), r'top\("name", by="x", rows=10\)'),
        (lambda: rows().key_by("k").process(weir.KeyedProcess), r'process\("name", factory\)'),
        (lambda: rows().key_by("k").join(rows().key_by("k")), r'got KeyedStream; write join\("name", '),
        (lambda: FRAMES["windowed"]().aggregate(n=weir.count()), r'aggregate\("name", n='),
        (lambda: FRAMES["all rows"]().aggregate(n=weir.count()), r'aggregate\("name", n='),
        (lambda: FRAMES["results"]().window_top(by="n", rows=1), r'window_top\("name", by="n"'),
        (lambda: weir.Dataflow("job").source(weir.JsonLines("none", schema=SCHEMA)), r'source\("name", weir.JsonL'),
    ],
)  # fmt: skip
def test_a_step_without_a_name_is_told_what_it_takes(make, message):
    with pytest.raises(weir.GraphError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rows().explode("k"), r'explode: column is missing; .* write explode\("name", "column"\)'),
        (lambda: rows().filter("x > 0"), r'filter: predicate is missing; .* write filter\("name", pl.col'),
        (lambda: rows().sink("print"), r'sink: sink is missing; .* write sink\("name", weir.Print'),
        (lambda: rows().key_by("k").top("x"), r'top: by is missing; .* write top\("name", by="x"'),
        (lambda: rows().map(name="m"), r'map: function is missing'),
    ],
)  # fmt: skip
def test_a_step_with_its_name_alone_is_told_what_it_takes(make, message):
    with pytest.raises(weir.GraphError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda rows: rows.key_by("k").window("60s"), "window after step 'rows': "),
        (lambda rows: rows.window_all("60s"), "window_all after step 'rows': "),
        (
            lambda rows: rows.key_by("k").window(weir.tumbling("1s"), early=3),
            "window after step 'rows': early takes",
        ),
        (lambda rows: rows.key_by("k").count_window(0), "count_window after step 'rows': rows is 0"),
        (lambda rows: rows.key_by("k").triggered_window(3), "triggered_window after step 'rows': "),
        (lambda rows: rows.key_by("z"), "key_by after step 'rows': there is no key column 'z'"),
        (
            lambda rows: rows.key_by("k").count_window(2).sum,
            "window after step 'rows': sum is not of windows",
        ),
    ],
)
def test_a_message_about_a_window_is_not_about_the_step_before_it(make, message):
    with pytest.raises(weir.GraphError, match=f"^{message}"):
        make(rows())


def test_functions_of_batches_may_return_frames():
    frames = rows().map_batches("doubled", lambda batch: pl.DataFrame(batch).with_columns(pl.col("x") * 2))
    filtered = frames.map_batches("kept", lambda batch: pl.DataFrame(batch).filter(pl.col("x") > 2))
    given = [{"k": "a", "x": 1}, {"k": "b", "x": 2}]
    assert testing.run(filtered, {"rows": given})["kept"].to_dicts() == [{"k": "b", "x": 4}]


class Frames(weir.KeyedProcess):
    def process_batch(self, batch, context):
        yield pl.DataFrame(batch).with_columns(x=pl.col("x") + 1)


def test_processes_of_batches_may_yield_frames():
    step = rows().key_by("k").process("step", Frames)
    assert testing.run(step, {"rows": [{"k": "a", "x": 1}]})["step"].to_dicts() == [{"k": "a", "x": 2}]


def half(row):
    return {"k": row["k"], "x": 6 // row["x"]}


def halves(batch):
    raise LookupError("of no row")


@pytest.mark.parametrize(
    ("make", "cause", "note"),
    [
        (lambda: rows().map("half", half), ZeroDivisionError, 'row: {"k":"b","x":0}'),
        (lambda: rows().flat_map("half", lambda row: [half(row)]), ZeroDivisionError, 'row: {"k":"b","x":0}'),
        (lambda: rows().map_batches("half", halves), LookupError, "in a batch of 2 rows"),
        (lambda: rows().key_by("k").process("half", Halves), ZeroDivisionError, 'row: {"k":"b","x":0}'),
    ],
)
def test_an_exception_of_a_run_has_the_row(make, cause, note):
    with pytest.raises(weir.WeirError, match="step 'half'") as found:
        testing.run(make(), {"rows": [{"k": "a", "x": 1}, {"k": "b", "x": 0}]})
    assert isinstance(found.value.__cause__, cause)
    assert found.value.__notes__ == [note]


class Halves(weir.KeyedProcess):
    def process(self, key, row, context):
        yield half(row)


@pytest.mark.parametrize(
    ("name", "meant"), [("tumble", "tumbling"), ("JSONLines", "JsonLines"), ("Sum", "sum")]
)
def test_a_misspelled_name_of_weir_is_told_with_the_one_that_was_meant(name, meant):
    with pytest.raises(AttributeError, match=f"weir has no '{name}'; did you mean '{meant}'?"):
        getattr(weir, name)
    assert not hasattr(weir, "__wrapped__")
