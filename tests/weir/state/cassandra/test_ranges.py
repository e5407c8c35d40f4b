"""Ranges over keys of a real Cassandra, of every kind of state, against slices of a list of all keys."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import weir
from tests.task_manager.queries.test_window_questions import WINDOWS, Job, Stored
from tests.weir.operators.queries.asked_states import GROUPS, WATERMARK_MS, Everything, Reading, build
from tests.weir.state.database_backend import node_settings
from tests.weir.state.retained_steps import Step
from weir.author.states import declared_states
from weir.operators.queries.answering import Page, answer_range, asked_state
from weir.protocol.database_run import DatabaseRun
from weir.protocol.queries import Question
from weir.state.cassandra.schema import state_tables
from weir.state.cassandra.session import leave_session, open_session
from weir.state.cassandra.tables import DatabaseTables
from weir.state.stores.memory import MemoryBackend

pytestmark = pytest.mark.service

#: Asks for a page.
Ask = Callable[..., Page]
AGGREGATES = {"n": weir.count(), "kinds": weir.count_distinct("v")}


class Asked:
    """Rows of a database as questions read them."""

    def __init__(self, tables: DatabaseTables) -> None:
        self._tables = tables
        self.get_many = tables.get_many

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return self._tables.scan(start, stop, reverse=reverse, may_read_all=True)


@contextmanager
def in_database(port: int, numbers: dict[str, int], backend: MemoryBackend, buckets: int) -> Iterator[Asked]:
    """What a store has, in a database."""
    session = open_session(node_settings(port, buckets=buckets))
    name = "-".join(["ranges", str(buckets), *sorted(numbers)])
    tables = DatabaseTables(
        session, DatabaseRun(secrets.token_hex(8)), state_tables(name, numbers, session.settings)
    )
    tables.create()
    known = {number.to_bytes(2, "big") for number in numbers.values()}
    tables.write([entry for entry in backend.scan() if entry[0][2:4] in known], 1)
    yield Asked(tables)
    leave_session(session)


def check_ranges(ask: Ask, whole: list[dict[str, Any]], chance: random.Random) -> None:
    """Random ranges, page by page, are slices of all rows, which are in order."""
    bounds = [row["key"] for row in whole] + ["", "key-1", "z"]
    for _ in range(10):
        given: dict[str, Any] = {}
        if chance.random() < 0.6:
            given["first"] = chance.choice(bounds)
        if chance.random() < 0.6:
            given["last"] = chance.choice(bounds)
        if not given and chance.random() < 0.5:
            given["prefix"] = chance.choice(bounds)[: chance.randrange(6)]
        reverse, limit = chance.random() < 0.5, chance.choice([2, 3, 7, 40])
        expected = [
            row
            for row in whole
            if given.get("first", "") <= row["key"] <= given.get("last", "zz")
            and row["key"].startswith(given.get("prefix", ""))
        ]
        expected = expected[::-1] if reverse else expected
        found, after = [], ""
        while True:
            page = ask(reverse=reverse, limit=limit, after=after, **given)
            assert len(page.rows) == limit or page.after is None
            found += page.rows
            if page.after is None:
                break
            after = page.after.hex()
        assert found == expected, (given, reverse, limit)


@pytest.mark.parametrize("buckets", [1, 3])
def test_ranges_of_declared_states_are_slices_of_all_keys(cassandra_port: int, buckets: int) -> None:
    chance = random.Random(buckets)
    backend, states = MemoryBackend(), {state.name: state for state in declared_states(Everything)}
    step = Step(backend, states, GROUPS)
    for number in range(40):
        handles = step.handles
        with step.at(chance.choice(["key-", "k", "longer-key-"]) + str(number)):
            handles["number"].value, handles["text"].value = number, f"text {number}"
            handles["items"].extend(range(chance.choice([1, 3, 40])))
            handles["names"].update({f"name-{at}": at for at in range(chance.choice([1, 2, 90]))})
            for at in sorted(chance.sample(range(30, 54), chance.choice([1, 4, 20]))):
                handles["prices"].put(at, at)
                handles["windows"].put(at, at)
                handles["visits"].put(at, at, at)
    step.tables.flush()
    numbers = {name: 2 + index for index, name in enumerate(sorted(states))}
    graph = build()
    with in_database(cassandra_port, numbers, backend, buckets) as database:
        for state in ("number", "text", "items", "names", "prices", "windows", "visits"):

            def ask(store: Any = database, state: str = state, **given: Any) -> Page:
                question = Question("all", state, None, **given)
                reading = Reading(store, WATERMARK_MS)
                asked = asked_state(graph, question)
                return answer_range(asked, reading, numbers[state], range(GROUPS), question, lambda: None)

            whole = ask(backend).rows
            assert [row["key"] for row in whole] == sorted(row["key"] for row in whole)
            assert len(whole) == 40
            check_ranges(ask, whole, chance)


@pytest.mark.parametrize("buckets", [1, 3])
@pytest.mark.parametrize("kind", WINDOWS)
def test_ranges_of_windows_are_slices_of_all_keys(
    cassandra_port: int, kind: str, buckets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.state.tables.panes.window_table.PACKED_ENTRIES_MIN", buckets)
    made = np.random.default_rng(buckets)
    job = Job(WINDOWS[kind], AGGREGATES)
    job.take_random(made, 300, 1_000)
    job.watermark(980)
    job.tables.flush()
    with in_database(cassandra_port, job.numbers, job.backend, buckets) as database:
        for state in AGGREGATES:

            def ask(store: Any = database, state: str = state, **given: Any) -> Page:
                found: Page = job.page(Stored(store, job.numbers), state, **given)
                return found

            whole = ask(job.backend).rows
            assert [row["key"] for row in whole] == sorted(row["key"] for row in whole)
            assert len(whole) > 5
            check_ranges(ask, whole, random.Random(buckets))
