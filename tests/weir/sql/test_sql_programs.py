"""Texts as jobs: names of steps, state that goes on, streams of Python, connectors."""

import datetime as dt
import json
from pathlib import Path

import polars as pl
import pytest

import weir
from weir import testing
from weir.errors import UserFunctionError
from weir.plan.stages import physical_graph
from weir.specs.told_form import told_form
from weir.sql.job import build
from weir.sql.program import build_program

_SOURCE = "CREATE SOURCE t (k VARCHAR, a BIGINT) WITH (connector = 'json', path = 'in');\n"
_VIEW = "CREATE VIEW sums AS SELECT k, SUM(a) AS s FROM t GROUP BY k;\n"
_SINK = "CREATE SINK o WITH (connector = 'collect') AS SELECT * FROM sums;\n"
_OTHER = (
    "CREATE VIEW firsts AS SELECT DISTINCT k FROM t WHERE a > 1;\n"
    "CREATE SINK p WITH (connector = 'collect') AS SELECT f.k FROM firsts f JOIN t ON f.k = t.k;\n"
)


def _names(flow: weir.Dataflow) -> list[str]:
    return [node.name for node in flow.build_local().nodes]


def test_names_come_from_the_statement_alone():
    before = _names(build_program("x.sql", _SOURCE + _VIEW + _SINK, "x"))
    after = _names(build_program("x.sql", _SOURCE + _OTHER + _VIEW + _SINK, "x"))
    assert before == ["t", "sums.input", "sums.group", "o"]
    assert set(before) <= set(after)


def test_a_view_keeps_its_state_when_another_one_is_added():
    before = build_program("x.sql", _SOURCE + _VIEW + _SINK, "x")
    after = build_program("x.sql", _SOURCE + _OTHER + _VIEW + _SINK, "x")
    with testing.start(before) as job:
        job.push("t", [{"k": "x", "a": 5}])
        savepoint = job.savepoint()
    with testing.start(after, from_savepoint=savepoint) as job:
        job.push("t", [{"k": "x", "a": 2}])
        found = testing.folded(job.rows("o").to_polars().filter(pl.col("_change") != "update_before"))
    assert found.rows() == [("x", 7)]


@pytest.mark.parametrize(
    ("view", "few"),
    [
        ("SELECT t.k, t.a, u.a AS b FROM t JOIN u ON t.k = u.k", "SELECT k FROM v WHERE a > 3"),
        (
            "SELECT k, COUNT(*) AS n FROM TUMBLE(t, at, INTERVAL '1' DAY) GROUP BY k, window_end",
            "SELECT n FROM v WHERE k = 'x'",
        ),
    ],
    ids=["join", "windows"],
)
def test_what_a_view_keeps_does_not_hang_on_who_reads_it(view, few):
    """Else a sink that is added finds nothing of the time before, or the savepoint is refused."""
    sources = "".join(
        f"CREATE SOURCE {name} (k VARCHAR, a BIGINT, at BIGINT, WATERMARK FOR at AS at) WITH (connector = 'parquet', "
        f"path = '{name}');\n"
        for name in "tu"
    )
    text = f"{sources}CREATE VIEW v AS {view};\nCREATE SINK o WITH (connector = 'blackhole') AS {few};\n"

    def kept(text):
        stages = physical_graph(build_program("x.sql", text, "x").build()).stages
        nodes = [node for stage in stages for node in stage.nodes]
        return {
            node.name: (told_form(node.spec), node.schema)
            for node in nodes
            if node.name.startswith("v.") or node.is_source
        }

    assert kept(text) == kept(f"{text}CREATE SINK p WITH (connector = 'blackhole') AS SELECT * FROM v;\n")


def test_a_view_that_two_read_is_made_once():
    flow = build_program("x.sql", _SOURCE + _VIEW + _SINK + _SINK.replace("SINK o", "SINK q"), "x")
    assert _names(flow) == ["t", "sums.input", "sums.group", "o", "q"]


def test_a_stream_among_streams():
    flow = weir.Dataflow("x")
    orders = flow.source("orders", weir.JsonLines("in", schema={"id": int, "who": str, "price": float}))
    dear = flow.sql("SELECT who, price * 2 AS double FROM orders WHERE price > 1", orders=orders, step="dear")
    totals = flow.sql('SELECT who, SUM("double") AS total FROM dear GROUP BY who', dear=dear)
    assert totals.is_changelog
    totals.filter("big", pl.col("total") > 5).sink("out", weir.Collect())
    given = [{"id": n, "who": "ab"[n % 2], "price": float(n)} for n in range(5)]
    found = testing.folded(testing.run(flow, {"orders": given})["out"].to_polars())
    assert sorted(found.rows()) == [("a", 12.0), ("b", 6.0)]
    assert [each for each in _names(flow) if each.startswith("dear")] == ["dear.filter", "dear.result"]


def test_a_text_with_a_view_that_nothing_reads_has_the_same_steps():
    sink = (
        "CREATE SINK o WITH (connector = 'collect') AS "
        "SELECT k FROM t QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY a) <= 2;\n"
    )
    alone = build_program("x.sql", _SOURCE + sink, "x")
    assert _names(build_program("x.sql", _SOURCE + _VIEW + sink, "x")) == _names(alone)


def test_insert_into_a_sink():
    text = (
        _SOURCE
        + "CREATE SINK o WITH (connector = 'collect');\n"
        + _VIEW
        + "INSERT INTO o SELECT k FROM sums;"
    )
    assert _names(build_program("x.sql", text, "x")) == ["t", "sums.input", "sums.group", "o.result", "o"]


def test_sources_with_a_drift_wait_for_each_other(tmp_path: Path):
    sources = "".join(
        f"""CREATE SOURCE {name} (at BIGINT, WATERMARK FOR at AS at - INTERVAL '1' SECOND)
            WITH (connector = 'json', path = '{tmp_path}', max_drift = '10m');
            CREATE SINK of_{name} WITH (connector = 'print') AS SELECT at FROM {name};"""
        for name in "ab"
    )
    flow = build_program("x.sql", sources, "x")
    found = {node.watermark.alignment for node in flow.build().nodes if node.name in ("a", "b")}
    assert found == {weir.watermark_alignment("10m")}


def test_files_of_every_kind(tmp_path: Path):
    rows = [{"id": n, "at": f"2026-01-01T00:00:{n:02d}", "x": n / 2} for n in range(10)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = f"""
        CREATE SOURCE t (id BIGINT NOT NULL, at TIMESTAMP, x DOUBLE, WATERMARK FOR at AS at - INTERVAL '1' SECOND)
            WITH (connector = 'json', path = '{tmp_path}/in.jsonl');
        CREATE SINK p WITH (connector = 'parquet', path = '{tmp_path}/p', partition_by = 'day') AS
            SELECT id, x, DATE_FORMAT(at, 'yyyy-MM-dd') AS day FROM t;
        CREATE SINK c WITH (connector = 'csv', path = '{tmp_path}/c', separator = ';') AS
            SELECT window_start, COUNT(*) AS n FROM TUMBLE(t, at, INTERVAL '5' SECOND)
            GROUP BY window_start, window_end;
        CREATE SINK d WITH (connector = 'delta', path = '{tmp_path}/d', parallelism = 1) AS SELECT id FROM t;
    """
    (tmp_path / "kinds.sql").write_text(text)
    weir.run(build(str(tmp_path / "kinds.sql"), parallelism=2))
    assert pl.read_parquet(tmp_path / "p/**/*.parquet", hive_partitioning=True)["x"].sum() == 22.5
    told = pl.concat([pl.read_csv(each, separator=";") for each in (tmp_path / "c").glob("part-*")])
    assert (
        sorted(told.rows()) == [("2026-01-01 00:00:00", 5), ("2026-01-01 00:00:05", 5)]
        or told["n"].sum() == 10
    )
    assert pl.read_delta(str(tmp_path / "d")).height == 10


def _told(text: str, rows: list[dict[str, object]], columns: str) -> list[tuple[object, ...]]:
    """What a query over ``t`` leaves, of rows of a source with these columns."""
    source = f"CREATE SOURCE t ({columns}) WITH (connector = 'json', path = 'in');\n"
    flow = build_program("x.sql", f"{source}CREATE SINK o WITH (connector = 'collect') AS {text};", "x")
    found = testing.run(flow, {"t": rows})["o"].to_polars()
    return (testing.folded(found) if "_change" in found.columns else found).rows()


def test_a_column_may_have_the_name_of_the_key_of_all_rows():
    rows = [{"_all": 1, "b": 5}, {"_all": 2, "b": 3}]
    text = "SELECT MAX(_all) AS high, MIN(b) AS low, COUNT(*) AS n FROM t"
    assert _told(text, rows, "_all BIGINT, b BIGINT") == [(2, 3, 2)]
    assert _told("SELECT MAX(_all) AS high FROM t", rows, "_all BIGINT, b BIGINT") == [(2,)]


def test_the_last_row_by_a_time_with_more_digits_than_event_times_have():
    start = dt.datetime(2024, 1, 1)
    rows = [{"id": n, "at": start + dt.timedelta(microseconds=us)} for n, us in enumerate((400, 500, 100))]
    columns = "id BIGINT, at TIMESTAMP(6), WATERMARK FOR at AS at - INTERVAL '1' SECOND"
    text = "SELECT id FROM (SELECT id, ROW_NUMBER() OVER (ORDER BY at DESC) AS r FROM t) WHERE r = 1"
    assert _told(text, rows, columns) == [(1,)]


def test_topics_are_written_with_the_settings_that_the_page_says():
    flow = weir.Dataflow("kafka")
    with_format = "topic = 'sums', bootstrap = 'localhost:9092', key = 'k', format = 'json'"
    for settings in (with_format, with_format.removesuffix(", format = 'json'")):
        text = (
            f"{_SOURCE}{_VIEW}CREATE SINK o WITH (connector = 'kafka', {settings}) AS SELECT k, s FROM sums;"
        )
        flow = build_program("x.sql", text, "x")
        spec = flow.node_of("o").spec
        assert (spec.topic, spec.key, spec.value) == ("sums", "k", None)


@pytest.mark.parametrize("time", [pl.col("at").dt.epoch("ms"), "ms"], ids=["expression", "column"])
@pytest.mark.parametrize("is_assigned", [False, True])
def test_a_timestamp_is_the_event_time_of_a_stream_of_python(time, is_assigned):
    schema = {"k": str, "at": pl.Datetime("ms"), "ms": int}
    flow = weir.Dataflow("shop")
    rows = flow.source("rows", weir.JsonLines("in", schema=schema), event_time=None if is_assigned else time)
    if is_assigned:
        rows = rows.assign_event_time("timed", time)
    column = time if isinstance(time, str) else "at"
    window = f"FROM TUMBLE(rows, {column}, INTERVAL '1' SECOND) GROUP BY window_start, window_end"
    flow.sql(f"SELECT window_start, COUNT(*) AS n {window}", rows=rows).sink("out", weir.Collect())
    start = dt.datetime(1970, 1, 1)
    given = [{"k": "x", "at": start + dt.timedelta(milliseconds=ms), "ms": ms} for ms in (1, 999, 1000)]
    found = testing.run(flow, {"rows": given})["out"].to_dicts()
    assert [row["n"] for row in found] == [2, 1]
    assert found[0]["window_start"] in (start, 0)


def test_the_version_as_of_a_time_whose_column_may_have_more_digits_than_ms():
    start = dt.datetime(2024, 1, 1)
    columns = "(id BIGINT, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '1' SECOND)"
    made = " WITH (connector = 'json', path = 'in');\n"
    text = (
        f"CREATE SOURCE t {columns}{made}CREATE SOURCE v {columns}{made}"
        "CREATE SINK o WITH (connector = 'collect') AS "
        "SELECT t.at, w.at AS since FROM t LEFT JOIN v FOR SYSTEM_TIME AS OF t.at AS w ON t.id = w.id;"
    )

    def rows(*times_us: int) -> list[dict[str, object]]:
        return [{"id": 1, "at": start + dt.timedelta(microseconds=us)} for us in times_us]

    program = build_program("x.sql", text, "x")
    found = testing.run(program, {"t": rows(3000, 5000, 9000), "v": rows(2000, 5000, 6000)})["o"].to_polars()
    assert [tuple((t - start).microseconds for t in row) for row in found.sort("at").rows()] == [
        (3000, 2000),
        (5000, 5000),
        (9000, 6000),
    ]
    for given in ({"t": rows(5400), "v": rows(5000)}, {"t": rows(5000), "v": rows(5400)}):
        with pytest.raises(UserFunctionError, match=r"at has more digits than ms, .*00\.005400"):
            testing.run(build_program("x.sql", text, "x"), given)
