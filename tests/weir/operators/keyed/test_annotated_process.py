"""mypy accepts a keyed process as an author writes it, strict or without annotations, with no ``type: ignore``."""

import subprocess
import sys
from pathlib import Path

import weir

ROOT = Path(weir.__file__).parents[1]
ON_ITS_OWN = ["--config-file=", "--no-incremental", "--ignore-missing-imports", "--follow-imports=silent"]

STRICT = """
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import polars as pl
import pyarrow as pa

import weir


class Row(TypedDict):
    user: str
    at: int


class Out(TypedDict):
    user: str
    edits: int


@dataclass
class Seen:
    first: int


class Bursts(weir.KeyedProcess):
    seen = weir.ListState(pl.Int64)
    total = weir.ValueState(pl.Int64, default=0)
    most = weir.ReducingState(pl.Int64, max)
    first = weir.ValueState(Seen)
    minutes = weir.MapState((pl.Int64, pl.String), pl.Int64)

    def __init__(self, limit: int = 3) -> None:
        self.limit = limit

    def open(self, context: weir.OperatorContext) -> None:
        self.index = context.subtask_index

    def process(
        self, key: tuple[str], row: dict[str, Any], context: weir.KeyContext
    ) -> Iterator[dict[str, Any]]:
        self.total.value += 1
        self.seen.append(row["at"])
        self.most.add(row["at"])
        self.first.value = self.first.value or Seen(context.event_time_ms)
        self.minutes[row["at"] // 60, key[0]] = 1
        yield {"user": key[0], "edits": len(self.seen)}

    def on_watermark(self, time_ms: int) -> None:
        print(time_ms)

    def finish(self) -> Iterable[pa.RecordBatch]:
        return ()

    def close(self) -> None:
        pass


class Typed(weir.KeyedProcess):
    total = weir.ValueState(pl.Int64, default=0)

    def process(self, key: tuple[str, ...], row: Row, context: weir.KeyContext) -> list[Out]:
        self.total.value += 1
        return [{"user": row["user"], "edits": self.total.value}]


class Silent(weir.KeyedProcess):
    def process(self, _key: tuple[str, int], _row: dict[str, object], _context: weir.KeyContext) -> None:
        return None


class Counts(weir.KeyedProcess):
    total = weir.ValueState(pl.Int64, default=0)

    def process_batch(self, batch: pa.RecordBatch, context: weir.KeyContext) -> Iterator[pa.RecordBatch]:
        keys = context.keys(batch)
        counts = np.bincount(keys.inverse, minlength=len(keys.distinct))
        totals = self.total.get(keys.distinct).to_numpy() + counts
        self.total.put(keys.distinct, totals)
        yield batch.select(["user"]).append_column("edits", pa.array(totals[keys.inverse]))


def build() -> weir.Dataflow:
    flow = weir.Dataflow("bursts")
    rows = flow.source("rows", weir.JsonLines("rows", schema={"user": str, "at": int})).key_by("user")
    rows.process("bursts", Bursts, {"user": str, "edits": int}).sink("out", weir.Print())
    rows.process("counts", lambda: Counts(), {"user": str, "edits": int}).sink("too", weir.Print())
    return flow
"""

PLAIN = """
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-any-generics, check-untyped-defs
import polars as pl

import weir


class Bursts(weir.KeyedProcess):
    seen = weir.ListState(pl.Int64)

    def process(self, key: tuple[str], row: dict, context: weir.KeyContext):
        self.seen.append(row["at"])
        yield {"user": key[0], "edits": len(self.seen)}


class Unannotated(weir.KeyedProcess):
    total = weir.ValueState(int, default=0)

    def process(self, key, row, context):
        self.total.value += 1
        yield {"user": key[0], "edits": self.total.value}

    def on_watermark(self, time_ms):
        self.time_ms = time_ms
"""


def test_a_process_needs_no_type_ignore(tmp_path):
    (tmp_path / "strict_job.py").write_text(STRICT)
    (tmp_path / "plain_job.py").write_text(PLAIN)
    names = {}
    exec(compile(STRICT, "strict_job.py", "exec"), names)
    names["build"]().build()
    # What `make check` knows of Weir and its libraries takes mypy ten seconds to find out again.
    knows_weir = (ROOT / ".mypy_cache").is_dir()
    found = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict"),
            *(["--config-file=pyproject.toml"] if knows_weir else ON_ITS_OWN),
            str(tmp_path / "strict_job.py"),
            str(tmp_path / "plain_job.py"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
