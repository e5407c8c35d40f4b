"""What the simulated job consists of besides production steps: a source of rows, a check, a transactional sink."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from experiments.simulation.world import SCALE, Violation
from weir.author.operator import Json, Operator, OperatorContext, Poll, SourceReader
from weir.keys.hashing import hash_keys, key_bytes, key_groups
from weir.operators.sinks.two_phase import TransactionId, TwoPhaseSink
from weir.rows import row_watermarks
from weir.rows.records import (
    EVENT_TIME_COLUMN,
    WATERMARK_MAX_MS,
    WATERMARK_MIN_MS,
    int64_column,
    watermarks_of,
    with_system_columns,
)
from weir.specs import SinkSpec, SourceSpec

if TYPE_CHECKING:
    from experiments.simulation.run import Simulation

SCHEMA = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("key", "source", "number")])


@dataclass(frozen=True)
class RowsSpec(SourceSpec):
    """Rows of a run."""

    kind: ClassVar[str] = "simulated_rows"
    runtime: ClassVar[str] = "experiments.simulation.operators:RowsReader"
    run: Any = None


@dataclass(frozen=True)
class FilesSpec(SinkSpec):
    """Delivers rows to the output of a run."""

    kind: ClassVar[str] = "simulated_files"
    runtime: ClassVar[str] = "experiments.simulation.operators:FilesSink"
    run: Any = None


@dataclass
class _Split:
    """The rows of one source of the job's description, whichever subtask reads them."""

    rows: pa.RecordBatch
    position: int

    @property
    def has_ended(self) -> bool:
        return self.position >= int(self.rows.num_rows)

    @property
    def time_ms(self) -> int:
        return 10 * (self.position - 1) if self.position else WATERMARK_MIN_MS


class RowsReader(SourceReader):
    """Emits the rows of its splits from their positions on, a few at a time; other subtasks share them anew."""

    def __init__(self, spec: RowsSpec) -> None:
        self._run: Simulation = spec.run
        self._splits: dict[int, _Split] = {}

    def open(self, context: OperatorContext) -> None:
        """Go on where the checkpoint ends."""
        indices = context.subtask_indices or tuple(range(context.parallelism))
        rank = indices.index(context.subtask_index)
        self._clock, self._generation = context.clock, context.generation
        positions = [
            item for part in context.restored.values() if part is not None for item in part["positions"]
        ]
        if len({split for split, _ in positions}) < len(positions):
            raise self._violation("a split is in two parts of a checkpoint")
        at = dict(positions)
        for split, keys in enumerate(self._run.job.rows):
            if split % len(indices) == rank:
                self._splits[split] = _Split(_rows(split, keys), at.get(split, 0))

    def poll(self, rows_max: int) -> Poll:
        """Some rows of the split that is furthest behind."""
        rng = self._run.world.rng
        left = [split for split in self._splits.values() if not split.has_ended]
        if not left:
            times_ms = [split.time_ms for split in self._splits.values()]
            return Poll(finished=True, event_time_ms_max=max(times_ms, default=WATERMARK_MIN_MS))
        split = min(left, key=lambda item: item.time_ms)
        batch = split.rows.slice(split.position, min(rng.randint(1, 6), rows_max))
        split.position += batch.num_rows
        others_ms = min((item.time_ms for item in left if item is not split), default=WATERMARK_MAX_MS)
        # As of each row: it comes to a consumer with the row.
        batch = row_watermarks.with_column(
            batch, np.minimum(int64_column(batch, EVENT_TIME_COLUMN), others_ms)
        )
        next_us = self._clock.now_us() + int(rng.random() * 8_000 * SCALE)
        return Poll(batch, event_time_ms_max=min(item.time_ms for item in left), next_poll_us=next_us)

    def snapshot(self) -> Json:
        """The positions."""
        positions = [[number, split.position] for number, split in self._splits.items()]
        return {"positions": positions, "generation": self._generation}

    def _violation(self, what: str) -> Violation:
        error = Violation(what)
        self._run.world.failure = self._run.world.failure or error
        return error


def _rows(split: int, keys: Collection[int]) -> pa.RecordBatch:
    columns = (list(keys), [split] * len(keys), range(len(keys)))
    rows = pa.RecordBatch.from_arrays([pa.array(column, pa.int64()) for column in columns], schema=SCHEMA)
    times = pa.array([10 * number for number in range(len(keys))], pa.int64()).to_numpy()
    return with_system_columns(rows, times, 0)


class Check(Operator):
    """Looks at what a stage with keyed state makes: no row comes after its watermark, and those of a key in order."""

    def __init__(self, run: Simulation) -> None:
        self._run = run
        self._watermark_ms = WATERMARK_MIN_MS

    def open(self, context: OperatorContext) -> None:
        """Note where this is."""
        self._run.task_manager_here().opens()
        self._context = context

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Look at the rows."""
        times_ms = int64_column(batch, EVENT_TIME_COLUMN)
        column = watermarks_of(batch)
        if column is not None and (late := column > times_ms).any():
            raise self._violation(f"rows of {times_ms[late].tolist()} are late as of {column[late].tolist()}")
        earliest_ms = int(times_ms.min())
        if earliest_ms < self._watermark_ms:
            raise self._violation(f"a row of {earliest_ms} comes after the watermark {self._watermark_ms}")
        place = self._context.generation, self._context.stage_index
        groups = key_groups(hash_keys(key_bytes(batch, ["key"])), self._run.loaded.graph.max_parallelism)
        for group, time_ms in zip(groups.tolist(), times_ms.tolist(), strict=True):
            self._run.ledger.row(place, self._context.subtask_index, group, time_ms)
        numbers = zip(*(batch.column(name).to_pylist() for name in ("key", "source", "number")), strict=True)
        for key, source, number in numbers:
            self._run.order.check(self._context, key, source, number)
        yield batch

    def on_watermark(self, time_ms: int) -> Iterable[pa.RecordBatch]:
        """Rows below it must not come any more."""
        self._watermark_ms = max(self._watermark_ms, time_ms)
        place = self._context.generation, self._context.stage_index
        self._run.ledger.watermark(place, self._context.subtask_index, time_ms)
        return ()

    def _violation(self, what: str) -> Violation:
        context = self._context
        error = Violation(f"{context.stage_index}/{context.subtask_index}: {what}")
        self._run.world.failure = self._run.world.failure or error
        return error


@dataclass
class Order:
    """Rows of a key from one source come in order, one after the other, whoever has the key's group."""

    run: Simulation
    #: By generation, key and source: number of the latest row.
    _latest: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def check(self, context: OperatorContext, key: int, source: int, number: int) -> None:
        """Note a row.

        Raises:
            Violation: it does not follow the latest one.
        """
        place = context.generation, key, source
        before = self._latest.get(place)
        keys = self.run.job.rows[source]
        if before is not None:
            expected = next((n for n in range(before + 1, len(keys)) if keys[n] == key), None)
            if number != expected:
                error = Violation(
                    f"generation {context.generation}: subtask {context.stage_index}/{context.subtask_index} takes "
                    f"row {number} of source {source} (key {key}) after row {before}"
                )
                self.run.world.failure = self.run.world.failure or error
                raise error
        self._latest[place] = number


class FilesSink(TwoPhaseSink):
    """Pending files until their checkpoint is complete."""

    def __init__(self, spec: FilesSpec) -> None:
        self._run: Simulation = spec.run

    def start(self, context: OperatorContext, is_restart: bool) -> None:
        """Nothing to prepare."""

    def begin(self, transaction: TransactionId) -> None:
        """A pending file."""
        generation = transaction.generation
        fence = 0 if self._run.world.broken == "names" else generation
        place = f"{self._context.stage_index}/{transaction.subtask_index}"
        self._name = f"{fence}-{place}-{transaction.sequence}"
        self._results = self._run.output.open(self._name, generation)

    def write(self, batch: pa.RecordBatch) -> None:
        """Not visible yet."""
        columns = (batch.column(name).to_pylist() for name in ("key", "count", "source", "number"))
        self._results += zip(*columns, strict=True)

    def prepare(self) -> Json:
        """It is durable already."""
        return {"name": self._name}

    def snapshot(self, checkpoint_id: int) -> Json:
        """See the base class; the order is for the check of the output."""
        listed = super().snapshot(checkpoint_id)
        for order, description in listed["transactions"]:
            description.setdefault("order", order)
        return listed

    def commit_prepared(self, description: Json) -> None:
        """Rename the file."""
        who = f"{self._context.stage_index}/{self._context.subtask_index}"
        self._run.output.deliver(description["name"], description.get("order", 0), who=who)

    def abort_unlisted(self, listed: Collection[str], generation: int) -> None:
        """Delete what earlier generations left."""
        self._run.output.drop_older(generation)
