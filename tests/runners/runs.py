"""Jobs of ``tests.equal`` on each runner: their input, what runs them, and what came out, in a form to compare."""

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import weir
from tests.equal import equal_jobs
from tests.equal.equal_rows import write_input
from tests.equal.equal_runs import said
from tests.runners.without_spark import Stream
from weir.rows.python_values import row_dicts
from weir.spark.running import run_batch, run_stream
from weir.spark.translation import job_on_spark

#: The last row of each source of a stream: its time is past all others, so that every window is complete. Those of the
#: source with odd times are beyond the others.
LAST_MS, ODD_LAST_MS, LAST_KEY = 10**10, 2**60 + 10**12, -7
MOVED_MS = 10**6
#: Of steps in a stream: each of them is a deployment of its own in each trigger, however few its rows are.
KEY_GROUPS = 2


def write_sorted(directory, rows):
    """The input of the jobs, in the order of event times: no row is late. Rows without a time come first."""
    write_input(directory, rows)
    for path in directory.glob("*.jsonl"):
        path.write_bytes(b"".join(line + b"\n" for line in in_time_order(path.read_bytes().splitlines())))


def in_time_order(lines):
    """Rows in the order of event times; those without a time come first."""
    times = [_time(line) for line in lines]
    order = sorted(range(len(lines)), key=lambda place: (times[place] is not None, times[place] or 0))
    return [lines[place] for place in order]


def _time(line):
    try:
        row = json.loads(line)
    except ValueError:
        return None
    time = row.get("at") if isinstance(row, dict) else None
    return time if isinstance(time, int) and abs(time) < 2**61 else None


def prepare_streams(directory):
    """Move the rows of the larger sources past 1970, where Spark's watermarks begin, and add a last row to all."""
    for name in ("left", "right", "third"):
        path = directory / f"{name}.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        moved = [
            each | {"to": each["to"] + MOVED_MS, "at": None if each["at"] is None else each["at"] + MOVED_MS}
            for each in rows
        ]
        path.write_text("".join(json.dumps(each) + "\n" for each in moved))
    for name in ("left", "right", "third", "bad", "quiet", "odd"):
        last_ms = ODD_LAST_MS if name == "odd" else LAST_MS
        row = {"k": LAST_KEY, "at": last_ms, "v": 1, "to": last_ms, "t": None}
        with (directory / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")


def flow_of(directory, name, *, late=True, **settings):
    """The dataflow of a job, and how its outputs are compared; ``late``: side outputs of late rows are, too."""
    job = equal_jobs.JOBS[name]
    if not late:
        sides = tuple(side for side in job.sides if not side.startswith("late"))
        equal_jobs.JOBS[name] = replace(job, sides=sides)
    try:
        return equal_jobs.flow_of(directory, [name], 1, **settings)
    finally:
        equal_jobs.JOBS[name] = job


def on_weir(directory, name):
    """What ``weir.run`` says of a job, by output."""
    flow, compare = flow_of(directory, name)
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


def before_last(directory, name):
    """What ``weir.run`` says of the rows of a stream but the last one, by output."""
    flow, compare = flow_of(directory, name, late=False)
    result = weir.run(flow)
    return {
        output: said(_before_last(name, result[f"{output}_out"].to_dicts(times=True)), kind)
        for output, kind in compare.items()
    }


def on_stream(spark, directory, name):
    """The same of a stream of Spark."""
    flow, compare = flow_of(directory, name, late=False, max_parallelism=KEY_GROUPS)
    found = {output: [] for output in compare}

    def take(step, table):
        found[step.removesuffix("_out")] += [dict(row) for row in row_dicts(table)]

    with tempfile.TemporaryDirectory() as checkpoints:
        run_stream(spark, flow.build_local(), checkpoints, take)
    return {output: said(_before_last(name, rows), compare[output]) for output, rows in found.items()}


def write_parts(directory, rows, parts):
    """The input of the jobs in parts: rows come late across them, and each is in the order of event times.

    What was read of the whole files is in ``whole``, for ``weir.run``; the parts are in ``parts``, by source.
    """
    whole = directory / "whole"
    whole.mkdir()
    write_input(whole, rows)
    for path in whole.glob("*.jsonl"):
        lines = path.read_bytes().splitlines()
        # Rules are there from the start, as in a run that reads them beside the rows.
        size = len(lines) if path.stem == "rules" else -(-len(lines) // parts)
        cuts = [in_time_order(lines[start : start + size]) for start in range(0, parts * size, size)]
        if path.stem != "rules":
            last_ms = ODD_LAST_MS if path.stem == "odd" else LAST_MS
            row = {"k": LAST_KEY, "at": last_ms, "v": 1, "to": last_ms, "t": None}
            cuts[-1].append(json.dumps(row).encode())
        (directory / "parts" / path.stem).mkdir(parents=True)
        for number, cut in enumerate(cuts):
            text = b"".join(line + b"\n" for line in cut)
            (directory / "parts" / path.stem / f"{number}.jsonl").write_bytes(text)
        path.write_bytes(b"".join(line + b"\n" for cut in cuts for line in cut))


def in_parts_on_weir(directory, name):
    """What ``weir.run`` says of the parts, one after the other."""
    flow, compare = flow_of(directory / "whole", name)
    result = weir.run(flow)
    return {
        output: said(_before_last(name, result[f"{output}_out"].to_dicts(times=True)), kind)
        for output, kind in compare.items()
    }


def in_parts_without_spark(directory, name, parts):
    """The same of what runs in the tasks of a stream, called without Spark; each part is a trigger."""
    flow, compare = flow_of(directory / "whole", name)
    stream, found = Stream(flow.build_local()), {output: [] for output in compare}
    for part in range(parts):
        collected = stream.run(
            lambda path, part=part: str(directory / "parts" / Path(path).stem / f"{part}.jsonl")
        )
        for step, table in collected.items():
            if table is not None:
                found[step.removesuffix("_out")] += [dict(row) for row in row_dicts(table)]
    return {output: said(_before_last(name, rows), compare[output]) for output, rows in found.items()}


def in_parts_on_stream(spark, directory, name, parts, place):
    """The same of a stream that is stopped after each part, and goes on from its checkpoints."""

    def read(source, lines):
        return replace(lines, path=str(place / "in" / source))

    flow, compare = flow_of(directory, name, read=read, max_parallelism=KEY_GROUPS)
    found = {output: [] for output in compare}

    def take(step, table):
        found[step.removesuffix("_out")] += [dict(row) for row in row_dicts(table)]

    for part in range(parts):
        for of in (directory / "parts").iterdir():
            (place / "in" / of.name).mkdir(parents=True, exist_ok=True)
            shutil.copy(of / f"{part}.jsonl", place / "in" / of.name)
        run_stream(spark, flow.build_local(), str(place / "checkpoints"), take)
    return {output: said(_before_last(name, rows), compare[output]) for output, rows in found.items()}


def _before_last(name, rows):
    last_ms = ODD_LAST_MS if name.startswith("odd") else LAST_MS
    return [row for row in rows if row["_event_time_ms"] < last_ms - 10**6]


def refusal_of(name, directory, mode):
    """Why a job does not run on Spark; None: it does."""
    flow, _ = flow_of(directory, name, late=mode == "batch")
    job = job_on_spark(flow.build_local(), mode)
    return job.refused[0].reason if job.refused else None


def differences_of(name, directory, mode):
    """What ``weir plan`` says that a job may say otherwise on Spark."""
    flow, _ = flow_of(directory, name, late=mode == "batch")
    return {step.differs for step in job_on_spark(flow.build_local(), mode).steps} - {""}
