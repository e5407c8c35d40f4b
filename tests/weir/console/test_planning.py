"""``weir plan`` on a job file."""

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


def test_a_library_that_a_sink_needs_and_that_is_not_installed_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    delta = JOB.replace("weir.Print()", "weir.DeltaSink('table')")
    (tmp_path / "delta_job_of_this_test.py").write_text(delta)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("weir.console.planning.find_spec", lambda name: None if name == "deltalake" else name)
    assert print_plan("delta_job_of_this_test.py", [], None, [], as_json=False) == 0
    assert capsys.readouterr().err == (
        "weir plan: step 'out' needs deltalake, which is not installed here; run: pip install 'weir[delta]'\n"
    )
