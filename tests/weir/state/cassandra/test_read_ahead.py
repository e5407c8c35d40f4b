"""What is read ahead of a real Cassandra: rows, changes in front of them, and what was written in the same batch."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest
from hypothesis.stateful import rule

import weir
from tests.weir.model_tests import model_test
from tests.weir.state.database_backend import subtask_state
from tests.weir.state.retained_steps import Step
from tests.weir.states.test_handles_model import GROUPS, Everything, Handles
from weir.dataflow.keyed_steps import process_states
from weir.state.api import StateBackend
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.values import known_ranges, value_ahead

pytestmark = pytest.mark.service

IDS = {state.name: number for number, state in enumerate(process_states("step", Everything))}
RETAINED = {
    "versions": lambda: weir.VersionedState(pl.Int64, retention="50ms"),
    "windows": lambda: weir.WindowState(pl.Int64, retention="50ms"),
    "sessions": lambda: weir.SessionState(pl.Int64, retention="50ms"),
    "names": lambda: weir.MapState(pl.Int64, pl.Int64, ttl=weir.Ttl("50ms")),
}
KEYS = [f"key-{number}" for number in range(12)]


@pytest.fixture(params=[1, 3])
def small_ranges(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Most keys are known in part; returns the number of buckets."""
    monkeypatch.setattr(value_ahead, "_ROWS_MAX", 6)
    monkeypatch.setattr(value_ahead, "_ROWS_MIN", 6)
    for module in (known_ranges, value_ahead):
        monkeypatch.setattr(module, "KNOWN_KEYS_MAX", 12)
    return int(request.param)


def test_values_lists_and_maps_are_those_of_plain_python(cassandra_port: int, small_ranges: int) -> None:
    class HandlesOnCassandra(Handles):
        def make_store(self) -> StateBackend:
            self._stack = contextlib.ExitStack()
            given = subtask_state(cassandra_port, IDS, GROUPS, buckets=small_ranges)
            store, self._apply = self._stack.enter_context(given)
            return store

        @rule()
        def apply(self) -> None:
            self.end_capture()
            self.owner.tables.flush()
            self._apply()

        def teardown(self) -> None:
            super().teardown()
            self._stack.close()

    model_test(HandlesOnCassandra, 6, 12)().runTest()


def test_versions_windows_and_sessions_are_those_of_a_store_in_memory(
    cassandra_port: int, small_ranges: int
) -> None:
    ids = {name: 2 + number for number, name in enumerate(sorted(RETAINED))}
    with subtask_state(cassandra_port, ids, 4, buckets=small_ranges) as (store, apply):
        both = [_opened(store), _opened(MemoryBackend())]
        for seed in range(120):
            chance = random.Random(seed)
            seen = [_batch(step, random.Random(seed)) for step in both]
            assert seen[0] == seen[1]
            match chance.randrange(6):
                case 0:
                    both[0].tables.flush()
                    apply()
                case 1:
                    for step in both:
                        step.tables.flush()
                    backends = [step.tables.backend for step in both]
                    watermark_ms = both[0].times.watermark_ms
                    both = [_opened(backend) for backend in backends]
                    for step in both:
                        step.times.advance(watermark_ms)
                case 2:
                    for step in both:
                        step.times.advance(seed)
                        step.sweep()


def _opened(backend: StateBackend) -> Step:
    return Step(backend, {name: make() for name, make in RETAINED.items()}, groups=4)


def _batch(step: Step, chance: random.Random) -> list[Any]:
    """A batch of rows whose times grow about as those of a stream do; returns what they saw."""
    keys = step.keys([chance.choice(KEYS) for _ in range(8)])
    step.cursor.block = keys.distinct
    seen: list[Any] = []
    for position in keys.inverse.tolist():
        step.cursor.index = position
        seen += _row(step.handles, chance)
    step.cursor.index = None
    for handle in step.handles.values():
        handle.prepare()
    for handle in step.handles.values():
        handle.apply()
    step.cursor.block = None
    return seen


def _row(handles: dict[str, Any], chance: random.Random) -> Iterator[Any]:
    versions, windows, sessions, names = (
        handles[name] for name in ("versions", "windows", "sessions", "names")
    )
    at, reverse = chance.randrange(100), chance.random() < 0.5
    match chance.randrange(10):
        case 0:
            yield versions.put(chance.choice([None, at]), at)
        case 1:
            yield windows.put(chance.choice([None, at, at]), at)
        case 2:
            yield sessions.put(chance.choice([None, at, at]), at - chance.randrange(9), at)
        case 3:
            names[at % 30] = at
        case 4:
            yield names.delete(at % 30)
        case 5:
            yield versions.get(at), list(versions.fetch(at - 20, at + 20, reverse=reverse))
        case 6:
            yield windows.get(at), list(windows.fetch(at - 20, at, reverse=reverse))
            yield next(windows.fetch(reverse=reverse), None)
        case 7:
            yield list(sessions.find(at - 20, at + 20, reverse=reverse))
        case 8:
            yield list(names.range(at % 30, at % 30 + 8, reverse=reverse)), names.get(at % 30)
            yield len(names)
        case 9:
            chance.choice([windows, sessions, names]).clear()
