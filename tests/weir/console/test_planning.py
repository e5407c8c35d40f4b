"""``weir plan`` on a job file."""

import pytest

from weir.console.planning import print_plan

JOB = """
import polars as pl
import weir

def build():
    flow = weir.Dataflow("narrow")
    schema = {"id": int, "a_rather_long_name_of_a_column": str, "another_rather_long_name": str, "payload": str}
    rows = flow.source("rows", weir.Parquet("in", schema=schema))
    kept = rows.filter("keep", pl.col("id") > 3)
    kept.select("pick", *list(schema)[:3]).sink("out", weir.Print())
    return flow
"""


def test_lines_are_whole_on_a_narrow_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "narrow_job_of_this_test.py").write_text(JOB)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert print_plan("narrow_job_of_this_test.py", [], None, [], as_json=False) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if "parquet_source" in line]
    assert line.endswith("another_rather_long_name: string  not read: payload  row groups: id > 3")


TABLE = 'weir.{}("names", schema={{"id": int, "name": str}}, {})'


@pytest.mark.parametrize(
    ("sink", "table", "step", "library", "extra"),
    [
        ('weir.DeltaSink("table")', "", "out", "deltalake", "delta"),
        ("weir.Print()", TABLE.format("FileTable", 'format="delta"'), "named", "deltalake", "delta"),
        ("weir.Print()", TABLE.format("CassandraTable", 'keyspace="shop"'), "named", "acsylla", "cassandra"),
    ],
)
def test_a_library_that_a_step_needs_and_that_is_not_installed_is_told(
    tmp_path, monkeypatch, capsys, sink, table, step, library, extra
):
    monkeypatch.chdir(tmp_path)
    looked_up = f'.lookup_join("named", {table}, on="id")' if table else ""
    job = f"plan_of_{step}_and_{library}.py"
    (tmp_path / job).write_text(JOB.replace('.sink("out", weir.Print())', f'{looked_up}.sink("out", {sink})'))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("weir.console.planning.find_spec", lambda name: None if name == library else name)
    assert print_plan(job, [], None, [], as_json=False) == 0
    assert capsys.readouterr().err == (
        f"weir plan: step {step!r} needs {library}, which is not installed here; run: pip install 'weir[{extra}]'\n"
    )
