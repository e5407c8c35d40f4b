"""Tables in Cassandra that rows look up: one request for each key, many of them at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from weir.clock import SystemClock
from weir.config.stores import CassandraConfig
from weir.errors import FailureKind, InputError, WeirError
from weir.rows.python_rows import rows_batch
from weir.specs.lookup_joins import CassandraTableSpec
from weir.state import patience
from weir.state.cassandra.claim import bound
from weir.state.cassandra.session import Session, is_away, leave_session, open_session

#: Rows of one key, at most: they are read whole, and joined with each row that has the key.
_ROWS_OF_KEY_MAX = 10_000


class TableAwayError(WeirError):
    """The database does not answer; later it may."""

    retryable = True
    failure_kind = FailureKind.OUTAGE


class CassandraTableReader:
    """Reader of a table in Cassandra: a ``weir.operators.joins.lookup_join_operator.TableReader``."""

    def __init__(
        self, spec: CassandraTableSpec, keys: Sequence[str], columns: Sequence[str], step: str
    ) -> None:
        self._spec, self._step = spec, step
        self._schema = pa.schema([spec.schema.field(name).with_nullable(True) for name in columns])
        where = " AND ".join(f'"{name}" = ?' for name in keys)
        listed = ", ".join(f'"{name}"' for name in columns)
        self._text = f'SELECT {listed} FROM "{spec.keyspace}"."{spec.table}" WHERE {where} LIMIT {_ROWS_OF_KEY_MAX + 1}'
        self._columns = list(columns)
        self._clock = SystemClock()
        self._session: Session | None = None
        # A table that is not there is told when the job begins, not with the first row.
        self._run(lambda session: session.prepare(self._text))

    def find(self, keys: pa.RecordBatch) -> pa.Table:
        """The rows of each key.

        Raises:
            TableAwayError: the database does not answer.
            InputError: it refuses the request, or a value is of another type than declared.
        """
        listed = list(zip(*(column.to_pylist() for column in keys.columns), strict=True))
        found: list[list[Any]] = [[] for _ in listed]

        async def ask(session: Session) -> None:
            prepared = await session.prepare(self._text)

            async def one(number: int) -> None:
                values = list(listed[number])
                result = await session.execute(lambda: bound(prepared, values), f"read {self._spec.table}")
                found[number] = [row.as_dict() for row in result]

            work: list[Callable[[], Awaitable[None]]] = [partial(one, at) for at in range(len(listed))]
            await session.gather(work)

        self._run(ask)
        for key, rows in zip(listed, found, strict=True):
            if len(rows) > _ROWS_OF_KEY_MAX:
                raise InputError(
                    f"step {self._step!r}: {self._spec.shown} has more than {_ROWS_OF_KEY_MAX:,} rows of key {key!r}; "
                    "look up by more columns"
                )
        try:
            return pa.table(rows_batch([row for rows in found for row in rows], self._schema))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"step {self._step!r}: {self._spec.shown}: {reason}") from error

    def close(self) -> None:
        """Leave the session."""
        if self._session is not None:
            leave_session(self._session)
            self._session = None

    def _run(self, work: Callable[[Session], Any]) -> None:
        """Run a coroutine with the session, which is opened first if it is not; give up after a while."""
        until_s = self._clock.monotonic_s() + self._spec.patience_ms / 1000

        def give_up(why_away: str) -> None:
            if self._clock.monotonic_s() > until_s:
                raise TableAwayError(
                    f"{why_away or 'Cassandra takes long'}; see contact_points and port of the table"
                )

        try:
            with patience.limited(give_up):
                if self._session is None:
                    self._session = open_session(_settings(self._spec))
                self._session.run(work(self._session))
        except WeirError as error:
            self.close()
            # What it says about a setting is of the database of the state.
            text = str(error).partition("; ")[0] if "taskManager." in str(error) else str(error)
            kind = TableAwayError if isinstance(error, TableAwayError) or is_away(error) else InputError
            raise kind(f"step {self._step!r}: {self._spec.shown}: {text}") from error


def _settings(spec: CassandraTableSpec) -> CassandraConfig:
    """Return the settings of its session; equal ones share one in a process."""
    settings = {
        "contact_points": spec.contact_points,
        "port": spec.port,
        "keyspace": spec.keyspace,
        "username": spec.credentials.get("username", ""),
        "password": spec.credentials.get("password", ""),
        "tls_ca_file": spec.tls_ca_file,
        "local_datacenter": spec.local_datacenter,
        "creates_tables": False,
        "dml_consistency": spec.consistency,
        "dml_timeout_ms": spec.request_timeout_ms,
        "requests_in_flight_max": spec.in_flight_max,
    }
    return CassandraConfig.model_validate(settings)
