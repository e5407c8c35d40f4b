"""How many rows a second a step works on that reads versions, windows and sessions in a database 12 times a row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from benchmarks.engine_run import EngineSetup, run_engine

JOB = "benchmarks.database_states_job"
_KEYS = 1_000
_FIRST_MS = 1_700_000_000_000


def rows_per_second(rows: int, settings: Mapping[str, object], directory: Path) -> dict[str, float]:
    """Run a job over a backlog, from nothing.

    Raises:
        ClusterError: it did not finish.
    """
    directory.mkdir(parents=True)
    source = directory / "rows.jsonl"
    with source.open("w") as lines:
        for number in range(rows):
            # A row of each key a second.
            row = {"k": f"key-{number % _KEYS:04d}", "t": _FIRST_MS + number, "v": number}
            lines.write(json.dumps(row) + "\n")
    setup = EngineSetup(JOB, {"input": source}, task_managers=1, settings=settings, timeout_s=900)
    run = run_engine(setup, directory / "cluster")
    return {"state_rows": run.events_out, "state_rows_per_second": run.events_out / run.sustained_s}
