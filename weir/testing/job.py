"""A job that a test drives step by step in its own thread: rows, time, checkpoints, restarts, savepoints."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal, Self

from weir.author.operator import SourceReader
from weir.clock import Clock
from weir.dataflow.builder import Dataflow
from weir.dataflow.streams import Stream
from weir.errors import GraphError
from weir.local.channels import Interleaving
from weir.local.collected import Collection
from weir.local.generations import Generations
from weir.local.job_parts import JobParts
from weir.local.preparing import local_graph, local_settings
from weir.local.result import DeadLetter, Result, Rows, rows_of
from weir.local.running import read_all
from weir.plan.graph import Node
from weir.plan.stages import physical_graph
from weir.rows.records import Watermark
from weir.spelling import did_you_mean
from weir.testing.inputs import GivenRows, PerSubtask, PushedInput, PushedReader, deal
from weir.testing.manual_clock import ManualClock

#: Rows of each source that is replaced, by the name of its step.
Inputs = Mapping[str, GivenRows | PerSubtask]


class Savepoint(os.PathLike[str]):
    """A savepoint on disk, in the form of all savepoints; a temporary one is removed with this object."""

    def __init__(self, path: str, *, is_temporary: bool) -> None:
        self.path = path
        if is_temporary:
            weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)

    def __fspath__(self) -> str:
        """Return the savepoint's directory."""
        return self.path

    def __str__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"Savepoint({self.path!r})"


def run(
    flow: Dataflow | Stream,
    inputs: Inputs | None = None,
    *,
    clock: Clock | None = None,
    collect_sinks: bool | Iterable[str] = False,
    out_of_order_grace_period_ms: int | None = None,
    seed: int | None = None,
) -> Result:
    """Run a dataflow on given rows to their end.

    Args:
        flow: the dataflow, or one of its streams (only what leads to it runs).
        inputs: by the name of a source, the rows that it gives instead of its own. Rows with ``Watermark`` among them
            have these watermarks; else watermarks follow the rows, as those of real sources do. Sources that are not
            named read what they say.
        clock: the time; by default a ``ManualClock``, which jumps to when a paced source has its next row.
        collect_sinks: sinks that are not opened; True: all.
        out_of_order_grace_period_ms: of watermarks that follow rows; None: as in config.json's defaults.
        seed: chooses in which order subtasks take what is under way; None: always the same one.

    Returns:
        The rows of every step.
    """
    with start(
        flow,
        inputs or {},
        clock=clock,
        watermarks="follow_rows",
        collect_sinks=collect_sinks,
        out_of_order_grace_period_ms=out_of_order_grace_period_ms,
        seed=seed,
        _drain=False,
    ) as job:
        return job.finish()


def start(
    flow: Dataflow | Stream,
    inputs: Inputs | None = None,
    *,
    clock: Clock | None = None,
    watermarks: Literal["by_hand", "follow_rows"] = "by_hand",
    collect_sinks: bool | Iterable[str] = False,
    from_savepoint: str | os.PathLike[str] | None = None,
    allow_dropped_state: bool = False,
    state: Literal["memory", "rocksdb"] = "memory",
    out_of_order_grace_period_ms: int | None = None,
    seed: int | None = None,
    _drain: bool = True,
) -> RunningJob:
    """Start a dataflow that the test drives; to be used with ``with``.

    Args:
        flow: the dataflow, or one of its streams (only what leads to it runs).
        inputs: by the name of a source, its first rows; named sources do not read what they say, more rows come with
            ``push``. None: all sources are replaced, and have no rows yet.
        clock: the time; by default a ``ManualClock``, moved by ``advance_time``.
        watermarks: "by_hand": of replaced sources, they move with ``advance_watermark`` only.
        collect_sinks: sinks that are not opened; True: all.
        from_savepoint: start from one: of ``RunningJob.savepoint``, or of a job on task managers.
        allow_dropped_state: steps of the savepoint that the job has not got lose what they held.
        state: where keyed state is kept.
        out_of_order_grace_period_ms: of watermarks that follow rows; None: as in config.json's defaults.
        seed: chooses in which order subtasks take what is under way; None: always the same one.
    """
    return RunningJob(
        flow,
        inputs,
        clock=clock or ManualClock(),
        follows_rows=watermarks == "follow_rows",
        collect_sinks=collect_sinks,
        from_savepoint=None if from_savepoint is None else os.fspath(from_savepoint),
        allow_dropped_state=allow_dropped_state,
        on_disk=state == "rocksdb",
        grace_period_ms=out_of_order_grace_period_ms,
        seed=seed,
        drain=_drain,
    )


class RunningJob:
    """A job that :func:`start` began. The call that makes a step run raises its error; then ``restart`` or leave."""

    def __init__(
        self,
        flow: Dataflow | Stream,
        inputs: Inputs | None,
        *,
        clock: Clock,
        follows_rows: bool,
        collect_sinks: bool | Iterable[str],
        from_savepoint: str | None,
        allow_dropped_state: bool,
        on_disk: bool,
        grace_period_ms: int | None,
        seed: int | None,
        drain: bool,
    ) -> None:
        logical = local_graph(flow)
        self.clock = clock
        self._nodes = {node.name: node for node in logical.nodes}
        sources = [node.name for node in logical.nodes if node.is_source]
        given: Inputs = {name: [] for name in sources} if inputs is None else inputs
        for name in given:
            if name not in sources:
                raise GraphError(f"inputs: no source is called {name!r}{did_you_mean(name, sources)}")
        self._pushed = {name: _pushed(self._nodes[name], rows, follows_rows) for name, rows in given.items()}
        self._collections = {node.name: Collection(node.schema) for node in logical.nodes}
        self._scratch = tempfile.mkdtemp(prefix="weir-testing-")
        self._remove_scratch = weakref.finalize(self, shutil.rmtree, self._scratch, ignore_errors=True)
        parts = JobParts(
            graph=physical_graph(logical, whole=self._nodes),
            settings=local_settings(grace_period_ms),
            clock=clock,
            state_ids={},
            collections=self._collections,
            dead_letters=Path(self._scratch, "dead-letters"),
            readers={name: self._reader(name) for name in given},
            hand_moved=frozenset(n for n, pushed in self._pushed.items() if not pushed[0].follows_rows),
            replaced_sinks=_sinks(logical.nodes, collect_sinks),
            interleaving=None if seed is None else Interleaving(seed),
        )
        for name, rows in given.items():
            self._give(name, rows, None)
        self._generations = Generations(
            parts,
            Path(self._scratch),
            on_disk=on_disk,
            from_savepoint=from_savepoint,
            allow_dropped=allow_dropped_state,
        )
        try:
            self._generations.begin()
            if drain:
                self._drain()
        except BaseException:
            self.stop()
            raise

    # --- input and time ----------------------------------------------------------------------------------------

    def push(self, source: str, rows: GivenRows | PerSubtask, *, subtask: int | None = None) -> None:
        """Give rows to a replaced source, and process them with all that follows from them.

        Args:
            source: name of the step.
            rows: dicts, a Polars frame, an Arrow table or batch, or a list of these. Their event time is that of the
                source's event-time column, or of a column ``_event_time_ms``, or the clock's.
            subtask: the subtask that reads them; None: the subtasks take rows in turn.
        """
        self._take(source, rows, subtask)

    def advance_watermark(self, source: str, time_ms: int, *, subtask: int | None = None) -> None:
        """Move the watermark of a source, or of one of its subtasks: rows below ``time_ms`` are late from now on."""
        self._take(source, [Watermark(time_ms)], subtask)

    def mark_idle(self, source: str, *, subtask: int | None = None) -> None:
        """Let a source, or one of its subtasks, not hold back the watermark until its next rows."""
        self._inputs_of(source)
        for running in self._generations.deployment.running_sources:
            if running.step == source and subtask in (None, running.subtask.subtask_index):
                running.mark_idle()
        self._drain()

    def advance_time(self, ms: float) -> None:
        """Move the clock; paced sources give what is due meanwhile, each row at its time.

        Raises:
            GraphError: the clock is not a ``ManualClock``.
        """
        clock = self._manual_clock()
        end_us = clock.now_us() + int(ms * 1000)
        while True:
            next_us = self._drain()
            if next_us >= end_us:
                break
            clock.advance_ms(max(next_us - clock.now_us(), 1) / 1000)
        clock.advance_ms((end_us - clock.now_us()) / 1000)
        self._drain()

    # --- checkpoints and restarts --------------------------------------------------------------------------------

    def checkpoint(self, upto: Literal["prepared", "complete", "committed"] = "committed") -> int:
        """Make a checkpoint; returns its number.

        With ``upto`` a test can restart at the worst moments: "prepared": sinks have prepared, but the checkpoint is
        not complete, so a restart goes on from an earlier one; "complete": it counts, but no sink has delivered.
        """
        with self._generations.failing():
            return self._generations.checkpoint(upto)

    def savepoint(self, path: str | os.PathLike[str] | None = None) -> Savepoint:
        """Make a checkpoint and a savepoint of it, at a path or in a temporary directory that goes with the object."""
        is_temporary = path is None
        place = tempfile.mkdtemp(prefix="weir-savepoint-") if path is None else os.fspath(path)
        savepoint = Savepoint(place, is_temporary=is_temporary)
        with self._generations.failing():
            self._generations.savepoint(place)
        return savepoint

    def restart(self) -> None:
        """Lose everything that no checkpoint has, as after ``kill -9``, and go on from the latest one.

        Nothing is flushed, prepared or committed; ``close`` is called, because nothing else frees files and locks here.
        Sources go back, so rows that no checkpoint covers are processed again before this returns.
        """
        self._generations.restart()
        self._drain()

    def finish(self) -> Result:
        """End the input of replaced sources, read the others to their end, and let sinks deliver."""
        for pushed in self._pushed.values():
            for one in pushed:
                one.ended = True
        with self._generations.failing():
            deployment = self._generations.deployment
            read_all(deployment, self.clock, lambda: False, self._sleep)
            self._generations.finish()
        return Result(self._collections, self.dead_letters, late_rows=deployment.late_rows)

    def stop(self) -> None:
        """End the job as it is: nothing more is delivered. Called at the end of ``with``."""
        self._generations.abandon()
        self._remove_scratch()

    # --- what came out -------------------------------------------------------------------------------------------

    def rows(self, step: str) -> Rows:
        """The rows of a step so far, of a sink those that it got; each once, whatever restarts there were."""
        return rows_of(self._collections, step)

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """Records that sources could not read, and rows that steps put aside."""
        return self._generations.dead_letters()

    @property
    def restarts(self) -> int:
        """How often the job was restarted."""
        return self._generations.restarts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- internals -----------------------------------------------------------------------------------------------

    def _drain(self) -> int:
        """Process all that is there; returns the wall clock (epoch µs) of the next row of a paced source."""
        with self._generations.failing():
            deployment = self._generations.deployment
            while True:
                progressed, next_us = deployment.round()
                if not progressed and next_us != 0:
                    return next_us

    def _sleep(self, seconds: float) -> None:
        if isinstance(self.clock, ManualClock):
            self.clock.advance_ms(seconds * 1000)
        else:
            time.sleep(seconds)

    def _manual_clock(self) -> ManualClock:
        if not isinstance(self.clock, ManualClock):
            raise GraphError("time is moved by hand only with clock=ManualClock()")
        return self.clock

    def _take(self, source: str, rows: GivenRows | PerSubtask, subtask: int | None) -> None:
        # A job that has failed takes nothing: the rows would come as a surprise after its restart.
        assert self._generations.deployment
        self._give(source, rows, subtask)
        self._drain()

    def _give(self, source: str, rows: GivenRows | PerSubtask, subtask: int | None) -> None:
        inputs = self._inputs_of(source)
        shares = deal(self._nodes[source], rows, subtask, self.clock.now_us())
        for pushed, share in zip(inputs, shares, strict=True):
            pushed.elements += share

    def _inputs_of(self, source: str) -> list[PushedInput]:
        if source not in self._pushed:
            raise GraphError(
                f"no source {source!r} takes rows here{did_you_mean(source, self._pushed)}; name it in inputs={{...}}"
            )
        return self._pushed[source]

    def _reader(self, source: str) -> Callable[[int], SourceReader]:
        strategy = getattr(self._nodes[source].spec, "watermark", None)
        make = None if strategy is None else strategy.generator
        return lambda index: PushedReader(self._pushed[source][index], None if make is None else make())


def _pushed(node: Node, rows: GivenRows | PerSubtask, follows_rows: bool) -> list[PushedInput]:
    has_watermarks = isinstance(rows, list | tuple) and any(isinstance(item, Watermark) for item in rows)
    return [PushedInput(follows_rows=follows_rows and not has_watermarks) for _ in range(node.parallelism)]


def _sinks(nodes: Iterable[Node], collected: bool | Iterable[str]) -> frozenset[str]:
    sinks = {node.name for node in nodes if node.is_sink}
    if isinstance(collected, bool):
        return frozenset(sinks) if collected else frozenset()
    for name in (wanted := frozenset([collected] if isinstance(collected, str) else collected)):
        if name not in sinks:
            raise GraphError(f"collect_sinks: no sink is called {name!r}{did_you_mean(name, sinks)}")
    return wanted
