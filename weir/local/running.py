"""``weir.run``: a dataflow from beginning to end in the calling thread."""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from weir.author.operator import NEVER_US
from weir.clock import Clock, SystemClock
from weir.config import ControlPlaneConfig
from weir.dataflow.builder import Dataflow
from weir.dataflow.streams import Stream
from weir.errors import GraphError, InputError
from weir.local.collected import Collection
from weir.local.deployment import Deployment, no_state
from weir.local.job_parts import JobParts
from weir.local.preparing import collected_steps, initial_routing, local_graph, local_settings
from weir.local.raising import told
from weir.local.result import Result, read_dead_letters
from weir.local.state import open_store
from weir.operators.step_errors import StepError
from weir.plan.graph import LogicalGraph
from weir.plan.stages import physical_graph
from weir.protocol.job.rejects import RejectLedger
from weir.specs.base import is_number
from weir.state.api import StateBackend

#: Sleep of a run with nothing to do, at most: it looks whether it is to stop.
_SLEEP_S_MAX = 0.05
#: Sleep where a source has nothing and does not say when.
_SLEEP_S_MIN = 0.001


def run(
    flow: Dataflow | Stream,
    *,
    collect: str | Iterable[str] = (),
    for_s: float | None = None,
    until: Callable[[Result], bool] | None = None,
    state_directory: str | Path | None = None,
    dead_letter_directory: str | Path | None = None,
    strict: bool = False,
) -> Result:
    """Run a dataflow in this process and this thread until its inputs end; for notebooks, scripts and tests.

    Everything is as on task managers (parallelism, key groups, watermarks, sinks), but there are no processes,
    checkpoints or restarts: sinks deliver at the end, an error ends the run and is raised. With the same input the rows
    are the same each time, in the same order.

    Args:
        flow: the dataflow; or one of its streams: only that step and what leads to it run, and it is collected.
        collect: names of steps whose rows the result has, besides branches that end in ``weir.Collect()`` or in
            nothing. They are kept in memory.
        for_s: stop after this many seconds, for sources that never end.
        until: stop when it is true; called with the rows so far between two batches.
        state_directory: keep keyed state there, in RocksDB, instead of in memory.
        dead_letter_directory: keep the file of rejected records there; the result has them in any case.
        strict: a record that a source rejects fails the run, and sinks deliver nothing; as ``weir run --strict``.

    Returns:
        The rows that were collected. A run that was stopped by ``for_s``, ``until`` or Ctrl-C has processed all that it
        has read: operators have finished and sinks have delivered.

    Raises:
        GraphError: the dataflow is not valid.
        UserFunctionError: a step raised; the cause is what it raised, with its traceback.
        InputError: an input cannot be read; too many records were rejected (more than a half, or more than 100 and one
            in a hundred), or one and the run is strict.
        WeirError: a sink or the state cannot be read or written.
    """
    logical = local_graph(flow)
    wanted = _checked_names(collect)
    if for_s is not None and not (is_number(for_s) and for_s >= 0):
        raise GraphError(f"for_s is {for_s!r}; it must be a number of seconds, or None")
    if isinstance(flow, Stream):
        wanted.add(flow.node.name)
    collections = collected_steps(logical, wanted)
    store = open_store(None if state_directory is None else Path(state_directory))
    clock = SystemClock()
    with tempfile.TemporaryDirectory(prefix="weir-run-") as scratch:
        dead_letters_at = Path(dead_letter_directory or scratch)
        deployment = _deployment(logical, collections, dead_letters_at, store, clock)
        was_stopped = False
        try:
            deployment.open()
            was_stopped = _read(deployment, clock, for_s, until, collections)
            deployment.end_input()
            if strict:
                _check_none_rejected(deployment)
            if not was_stopped:
                _check_share_rejected(deployment, keeps_letters=dead_letter_directory is not None)
            deployment.commit(0)
        except StepError as error:
            shown = told(error)
            raise shown from shown.__cause__
        finally:
            # The first error is what matters; without one, that of a close is.
            errors = deployment.close()
            store.close()
            dead_letters = read_dead_letters(deployment.dead_letters)
        if errors:
            raise errors[0]
        return Result(collections, dead_letters, was_stopped=was_stopped, late_rows=deployment.late_rows)


def _checked_names(collect: object) -> set[str]:
    if isinstance(collect, str):
        return {collect}
    if not isinstance(collect, Iterable) or not all(isinstance(name, str) for name in collect):
        raise GraphError(f"collect is {collect!r}; give the name of a step, or a list of names")
    return set(collect)


def _check_none_rejected(deployment: Deployment) -> None:
    for step, file in deployment.dead_letters:
        if file.first is not None:
            source, position, reason = file.first
            place = f"{source} at {position}: " if position >= 0 else ""
            raise InputError(
                f"source {step!r} rejected {file.rejected:,} record{'s' if file.rejected > 1 else ''}; the first: "
                f"{place}{reason}; a strict run takes none: mend it, or run without strict=True"
            )


def _check_share_rejected(deployment: Deployment, *, keeps_letters: bool) -> None:
    """Judge what was rejected as the control plane does at a job's end, by the defaults of its settings."""
    defaults = ControlPlaneConfig()
    ledger = RejectLedger(defaults.dead_letter_share_max, defaults.dead_letter_grace, strict=False)
    for subtask, item in deployment.rejects().items():
        if item.first is not None and not keeps_letters:
            item = replace(item, first=replace(item.first, dead_letters=""))
        ledger.take(subtask, [item])
    if verdict := ledger.verdict(at_end=True):
        # Here there is no such setting.
        told = verdict.partition(", or raise ")[0]
        raise InputError(told if keeps_letters else f"{told}; dead_letter_directory= keeps all of them")


def _deployment(
    logical: LogicalGraph,
    collections: dict[str, Collection],
    dead_letters: Path,
    store: StateBackend,
    clock: Clock,
) -> Deployment:
    parts = JobParts(
        graph=physical_graph(logical, whole=collections),
        settings=local_settings(),
        clock=clock,
        state_ids=logical.state_ids({}),
        collections=collections,
        dead_letters=dead_letters,
        readers={},
    )
    routing = initial_routing(parts.graph)
    return Deployment(parts, routing, store, 1, clock.now_us(), no_state, keeps_positions=False)


def _read(
    deployment: Deployment,
    clock: Clock,
    for_s: float | None,
    until: Callable[[Result], bool] | None,
    collections: Mapping[str, Collection],
) -> bool:
    """Read until the input ends, or until the caller of :func:`run` wants no more; returns whether that came first."""
    deadline_s = float("inf") if for_s is None else clock.monotonic_s() + for_s
    with _interrupts() as is_interrupted:

        def is_over() -> bool:
            if is_interrupted() or clock.monotonic_s() >= deadline_s:
                return True
            return until is not None and until(Result(collections, ()))

        return read_all(deployment, clock, is_over, time.sleep)


def read_all(
    deployment: Deployment, clock: Clock, is_over: Callable[[], bool], sleep: Callable[[float], None]
) -> bool:
    """Poll sources until all have ended, or until it ``is_over``; returns whether that came first.

    ``sleep`` passes this many seconds of the clock.
    """
    while deployment.running_sources:
        if is_over():
            return True
        progressed, next_us = deployment.round()
        if not progressed:
            wait_s = _SLEEP_S_MIN if next_us == 0 else (next_us - clock.now_us()) / 1e6
            sleep(min(max(wait_s, _SLEEP_S_MIN), _SLEEP_S_MAX if next_us < NEVER_US else _SLEEP_S_MIN))
    deployment.settle()
    return False


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C is noted, for the run to end in order; the next one raises KeyboardInterrupt as ever."""
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        # Somebody else wants to know of it, or it is ignored.
        yield lambda: False
        return

    def note(number: int, frame: object) -> None:
        noted.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(noted)
    finally:
        signal.signal(signal.SIGINT, before)
