"""State in a real Cassandra, for the conformance suite."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tests.weir.state.spread_keys import GROUPS, SpreadKeys
from weir.config.stores import CassandraConfig
from weir.protocol.database_run import DatabaseRun
from weir.state.api import StateBackend
from weir.state.cassandra.applying import Applying
from weir.state.cassandra.schema import state_tables
from weir.state.cassandra.session import leave_session, open_session
from weir.state.cassandra.store import DatabaseStore
from weir.state.cassandra.tables import DatabaseTables
from weir.state.placement.placed_store import PlacedStore
from weir.state.stores.memory import MemoryBackend

STATE = 2


def node_settings(port: int, **others: Any) -> CassandraConfig:
    """How tests use the node that they share."""
    own = {"keyspace": "conformance", "username": "cassandra", "password": "cassandra"}
    return CassandraConfig(**{"port": port, **own, **others})


class SharedTables:
    """One session for all tests of a worker, and the tables of each number of buckets, created once."""

    def __init__(self, port: int) -> None:
        self.session = open_session(node_settings(port))
        self._port = port
        self._tables: dict[int, DatabaseTables] = {}

    def of(self, buckets: int) -> DatabaseTables:
        """The tables of a job."""
        if buckets not in self._tables:
            settings = node_settings(self._port, buckets=buckets)
            states = state_tables(f"job{buckets}", {"count": STATE}, settings)
            self._tables[buckets] = DatabaseTables(self.session, DatabaseRun("none"), states)
            self._tables[buckets].create()
        return self._tables[buckets]

    def close(self) -> None:
        """Leave the session."""
        leave_session(self.session)


@contextmanager
def subtask_state(
    port: int, state_ids: dict[str, int], groups: int, **others: Any
) -> Iterator[tuple[DatabaseStore, Callable[[], None]]]:
    """The state of one subtask of a new run, and what completes and applies a checkpoint of what was written."""
    session = open_session(node_settings(port, **others))
    job = "-".join(["subtask", *sorted(state_ids), *(str(value) for value in others.values())])
    tables = DatabaseTables(
        session, DatabaseRun(secrets.token_hex(8)), state_tables(job, state_ids, session.settings)
    )
    tables.create()
    changes = PlacedStore(
        MemoryBackend(), "here:1", state_ids.values(), lambda address, epochs: pytest.fail(address)
    )
    changes.ownership.adopt(dict.fromkeys(range(groups), 1))
    passed = [1]
    store = DatabaseStore(changes, tables, passed_id=lambda: passed[0])
    applying = Applying(tables, "job")
    applying.add(store)

    def apply() -> None:
        passed[0] += 1
        applying.took(changes, passed[0], 0)
        applying.ended(passed[0], committed=True)
        applying.finish(passed[0], 180)
        assert list(changes.scan()) == []

    yield store, apply
    store.close()
    applying.close()
    leave_session(session)


class AppliedAtOnce(SpreadKeys):
    """After each write a checkpoint is complete, and applied before the next call."""

    def __init__(self, store: DatabaseStore, applying: Applying, passed: list[int]) -> None:
        super().__init__(store)
        self._store, self._applying, self._passed = store, applying, passed

    def change(self, puts: Sequence[tuple[bytes, bytes]]) -> None:
        """Write what :meth:`apply` will apply."""
        super().write(puts)

    def write(self, puts: Sequence[tuple[bytes, bytes]] = (), deletes: Sequence[bytes] = ()) -> None:
        super().write(puts, deletes)
        self.apply()

    def delete_range(self, start: bytes | None, stop: bytes | None) -> None:
        super().delete_range(start, stop)
        self.apply()

    def apply(self) -> None:
        self._passed[0] += 1
        self._applying.took(self._store.changes, self._passed[0], 0)
        self._applying.ended(self._passed[0], committed=True)
        self._applying.finish(self._passed[0], 180)
        assert list(self._store.changes.scan()) == []


def database_backend(known: DatabaseTables, *, applies: bool) -> Iterator[StateBackend]:
    """A subtask's state; rows of others have another run."""
    tables = DatabaseTables(known.session, DatabaseRun(secrets.token_hex(8)), known.tables)
    changes = PlacedStore(MemoryBackend(), "here:1", [STATE], lambda address, epochs: pytest.fail(address))
    changes.ownership.adopt(dict.fromkeys(range(GROUPS), 1))
    passed = [1]
    store = DatabaseStore(changes, tables, passed_id=lambda: passed[0])
    applying = Applying(tables, "job")
    applying.add(store)
    backend = AppliedAtOnce(store, applying, passed) if applies else SpreadKeys(store)
    yield backend
    backend.close()
    applying.close()
