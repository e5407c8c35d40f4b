"""Runs a job, changes it, and compares what it tells then with a computation from scratch."""

from __future__ import annotations

import hashlib
import random
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from benchmarks.changed.jobs import DEFAULTS, SOURCES, Settings, build
from benchmarks.changed.rows import Row, rows_of, typed
from benchmarks.changed.scratch import Run, Told, counted, table_before, told_from_scratch
from weir import testing
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.errors import WeirError
from weir.plan.graph import LogicalGraph
from weir.protocol.checkpoints.manifest import Manifest
from weir.savepoints.changes import StepChange, Verdict, step_changes

#: Milliseconds between the last row before the savepoint and its watermark.
BEHIND_MS = 5
#: Rows whose windows were all over at the savepoint, and the time of the first of them.
LATE_ROWS, LATE_MS = 5, -200


@dataclass(frozen=True)
class Outcome:
    """What came of a change."""

    #: Why it was refused; "": the job went on.
    refused: str = ""
    #: What is not as it must be; "": all is.
    wrong: str = ""


@dataclass
class Saved:
    """A savepoint of a job, and the rows that it had had."""

    path: Path
    rows: dict[str, list[Row]]
    cut_ms: int
    digest: str


@dataclass
class Trials:
    """Makes savepoints of jobs, each once. To be used with ``with``."""

    rows: int = 60
    state: Literal["memory", "rocksdb"] = "memory"
    _root: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="weir-changed-")))
    _saved: dict[str, Saved] = field(default_factory=dict)

    def outcome(
        self, kind: str, before: Settings, after: Settings, *, drops: bool = False, seed: int = 0
    ) -> Outcome:
        """Change a job.

        Args:
            kind: of its step.
            before: settings that are not ``DEFAULTS``, and
            after: so after the change.
            drops: start with leave to drop what the job has no more.
            seed: of the rows, and of where the job is restarted.
        """
        old, new = {**DEFAULTS[kind], **before}, {**DEFAULTS[kind], **after}
        saved = self._savepoint(kind, old, seed)
        sources = _sources(kind)
        later = {
            source: rows_of(seed * 2 + 101 + number, self.rows, first_ms=saved.cut_ms + BEHIND_MS, keys=7)
            for number, source in enumerate(sources)
        }
        if kind == "join" or (kind == "window" and new["window"].kind != "global"):
            # Late ones: the job knows how far time had come, whatever has changed.
            later["events"] = [*rows_of(seed, LATE_ROWS, first_ms=LATE_MS), *later["events"]]
        run = Run(old, new, saved.rows, later, saved.cut_ms, saved.cut_ms + BEHIND_MS)
        said = _said(kind, new, saved, drops=drops)
        try:
            job = testing.start(
                build(kind, new),
                dict.fromkeys(_given(new, later), ()),
                from_savepoint=saved.path,
                allow_dropped_state=drops,
                state=self.state,
            )
        except WeirError as error:
            wrong = "" if said else f"weir plan says that it would start, but: {error}"
            if _digest(saved.path) != saved.digest:
                wrong = "the savepoint was changed by a start that was refused"
            return Outcome(str(error), wrong)
        with job:
            rows = self._told(job, _given(new, later), seed)
        if said:
            return Outcome(wrong=f"it started, but weir plan refuses it: {said}")
        table = table_before(kind, run)
        found = counted({"names": {}}, rows) if table is None else _folded(table, rows, new)
        return Outcome(wrong=_difference(found, told_from_scratch(kind, run)))

    def _savepoint(self, kind: str, old: Settings, seed: int) -> Saved:
        known = repr((kind, seed, sorted(old.items(), key=str)))
        if known not in self._saved:
            sources = _sources(kind)
            rows = {source: rows_of(seed * 2 + number, self.rows) for number, source in enumerate(sources)}
            cut_ms = self.rows - BEHIND_MS
            path = self._root / str(len(self._saved))
            with testing.start(build(kind, old), _given(old, rows), state=self.state) as job:
                for source in _given(old, rows):
                    job.advance_watermark(source, cut_ms)
                job.savepoint(path)
            self._saved[known] = Saved(path, rows, cut_ms, _digest(path))
        return self._saved[known]

    def _told(self, job: testing.RunningJob, given: dict[str, list[Row]], seed: int) -> list[Row]:
        """What the job tells from the savepoint on, with a restart in the middle."""
        chosen = random.Random(seed)
        first, second = sorted(chosen.sample(range(1, self.rows), 2))
        for source, rows in given.items():
            job.push(source, rows[:first])
        job.checkpoint()
        for source, rows in given.items():
            job.push(source, rows[first:second])
        # What no checkpoint has comes again.
        job.restart()
        for source, rows in given.items():
            job.push(source, rows[second:])
        return [dict(row) for row in job.finish()["out"]]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._root, ignore_errors=True)


def _sources(kind: str) -> tuple[str, ...]:
    return SOURCES if kind == "join" else SOURCES[:1]


def _given(settings: Settings, rows: dict[str, list[Row]]) -> dict[str, list[Row]]:
    """By what the sources are called in the job: the columns that they have."""
    names = {"events": settings["source"]}
    return {
        names.get(source, source): [
            {name: typed(row.get(name), settings["types"].get(name)) for name in settings["columns"]}
            for row in given
        ]
        for source, given in rows.items()
    }


def _said(kind: str, new: Settings, saved: Saved, *, drops: bool) -> str:
    """Why ``weir plan`` says that the job would not start; "": it would."""
    manifest = CheckpointStore.open_savepoint(str(saved.path)).latest()
    assert manifest is not None
    changes = planned(build(kind, new).build(), manifest, allow_dropped=drops)
    return "; ".join(change.reason for change in changes if change.verdict is Verdict.REFUSED)


def _folded(before: list[Row], rows: list[Row], settings: Settings) -> Told:
    """What a changelog leads to from rows that were there."""
    table = counted(settings, before)
    for row in rows:
        change = row.pop("_change")
        table[tuple(sorted(row.items()))] += 1 if change in ("insert", "update_after") else -1
    return Counter({row: count for row, count in table.items() if count})


def _difference(found: Told, wanted: Told) -> str:
    if found == wanted:
        return ""
    more, less = found - wanted, wanted - found
    # Taken away more often than it was there.
    more.update({row: count for row, count in found.items() if count < 0})
    shown = [dict(next(iter(rows))) if rows else None for rows in (more, less)]
    return f"{sum(more.values())} rows too many, {sum(less.values())} too few: {shown[0]} for {shown[1]}"


def _digest(path: Path) -> str:
    """Of all files below a directory."""
    found: Any = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        if file.is_file():
            found.update(str(file.relative_to(path)).encode() + b"\0" + file.read_bytes())
    return str(found.hexdigest())


def planned(graph: LogicalGraph, manifest: Manifest, *, allow_dropped: bool) -> list[StepChange]:
    """What becomes of each step where a test starts from its own checkpoint, which has all columns of all steps."""
    return step_changes(
        graph, manifest, allow_dropped=allow_dropped, whole=[node.name for node in graph.nodes]
    )
