"""Jobs of ``tests.equal`` on each runner: their input, what runs them, and what came out, in a form to compare."""

import json
import tempfile
from dataclasses import replace

import weir
from tests.equal import equal_jobs
from tests.equal.equal_rows import write_input
from tests.equal.equal_runs import said
from weir.rows.python_values import row_dicts
from weir.spark.running import run_batch, run_stream
from weir.spark.translation import job_on_spark

#: The last row of each source of a stream: its time is past all others, so that every window is complete.
LAST_MS, LAST_KEY = 10**9, -7
MOVED_MS = 10**6


def write_sorted(directory, rows):
    """The input of the jobs, in the order of event times: no row is late. Rows without a time come first."""
    write_input(directory, rows)
    for path in directory.glob("*.jsonl"):
        lines = path.read_bytes().splitlines()
        times = [_time(line) for line in lines]
        order = sorted(range(len(lines)), key=lambda place: (times[place] is not None, times[place] or 0))
        path.write_bytes(b"".join(lines[place] + b"\n" for place in order))


def _time(line):
    try:
        row = json.loads(line)
    except ValueError:
        return None
    time = row.get("at") if isinstance(row, dict) else None
    return time if isinstance(time, int) and abs(time) < 2**61 else None


def prepare_streams(directory):
    """Move the rows of the larger sources past 1970, where Spark's watermarks begin, and add a last row."""
    row = {"k": LAST_KEY, "at": LAST_MS, "v": 1, "to": LAST_MS, "t": None}
    for name in ("left", "right", "third"):
        path = directory / f"{name}.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        moved = [
            each | {"to": each["to"] + MOVED_MS, "at": None if each["at"] is None else each["at"] + MOVED_MS}
            for each in rows
        ]
        path.write_text("".join(json.dumps(each) + "\n" for each in [*moved, row]))


def flow_of(directory, name, *, sides=True):
    """The dataflow of a job, and how its outputs are compared."""
    job = equal_jobs.JOBS[name]
    if not sides:
        equal_jobs.JOBS[name] = replace(job, sides=())
    try:
        return equal_jobs.flow_of(directory, [name], 1)
    finally:
        equal_jobs.JOBS[name] = job


def on_weir(directory, name, *, sides=True):
    """What ``weir.run`` says of a job, by output."""
    flow, compare = flow_of(directory, name, sides=sides)
    result = weir.run(flow)
    return {
        output: said(result[f"{output}_out"].to_dicts(times=True), kind) for output, kind in compare.items()
    }


def on_spark(spark, directory, name):
    """The same of a batch of Spark."""
    flow, compare = flow_of(directory, name)
    result = run_batch(spark, flow.build_local())
    return {
        output: said([dict(row) for row in row_dicts(result.collected[f"{output}_out"])], kind)
        for output, kind in compare.items()
    }


def on_stream(spark, directory, name):
    """The same of a stream of Spark, without what is about the last row."""
    flow, compare = flow_of(directory, name, sides=False)
    found = {output: [] for output in compare}

    def take(step, table):
        found[step.removesuffix("_out")] += row_dicts(table)

    with tempfile.TemporaryDirectory() as checkpoints:
        run_stream(spark, flow.build_local(), checkpoints, take)
    return {
        output: said([dict(row) for row in rows if row["_event_time_ms"] < LAST_MS - 10**6], compare[output])
        for output, rows in found.items()
    }


def before_last(outputs):
    """What is said of rows before the last one."""
    return {
        name: {row: count for row, count in rows.items() if json.loads(row)[-1] < LAST_MS - 10**6}
        for name, rows in outputs.items()
    }


def refusal_of(name, directory, mode):
    """Why a job does not run on Spark; None: it does."""
    flow, _ = flow_of(directory, name, sides=mode == "batch")
    job = job_on_spark(flow.build_local(), mode)
    return job.refused[0].reason if job.refused else None
