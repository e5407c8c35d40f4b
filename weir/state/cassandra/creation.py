"""Makes the tables of a job's states in the database, or says how they have to be made."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from weir.errors import FailureKind, StateError
from weir.state.cassandra.durability import warn_of_lost_writes
from weir.state.cassandra.schema import (
    RUNS_TABLE,
    StateTable,
    columns_query,
    keyspace_query,
    keyspace_statement,
    misfit,
    runs_statement,
    table_statement,
)
from weir.state.cassandra.session import CheckCancelled, Session

log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 0.1
#: Two reads may be of two nodes, of which one has not said its own version then.
_LOOKS_ALIKE = 2
#: Where nothing was to be made others may just have made it; a node that is down must not hold up each restart.
_FOUND_MS = 1_000


def create_tables(session: Session, tables: Sequence[StateTable], check_cancelled: CheckCancelled) -> None:
    """Create what is missing, or say what has to be created; blocks, and is harmless where several do so at once.

    Raises:
        StateError: the database refuses.
    """
    settings = session.settings
    if not settings.creates_tables:
        statements = [keyspace_statement(settings), runs_statement(settings), *map(table_statement, tables)]
        log.info("what must exist: %s", "; ".join(statements))
    session.run(_create(session, tables), check_cancelled)


async def _create(session: Session, tables: Sequence[StateTable]) -> None:
    """What is there is left alone: whoever may use it need not have the right to create it."""
    settings = session.settings
    runs = f"{settings.keyspace}.{RUNS_TABLE}"
    has_made = False
    if settings.creates_tables and (await session.read_schema(keyspace_query(settings))).first() is None:
        has_made = True
        await session.execute_schema(
            keyspace_statement(settings),
            f"create keyspace {settings.keyspace}",
            "correct taskManager.cassandra.replication",
        )
    if settings.creates_tables and not await _columns(session, runs):
        has_made = True
        # Another task manager may have made the keyspace a moment ago, and other nodes not have heard of it.
        await one_schema(session, settings.ddl_timeout_ms)
        await session.execute_schema(runs_statement(settings), f"create table {runs}")
    for table in tables:
        columns = await _columns(session, table.name)
        wrong = misfit(table, columns) if columns else ""
        if wrong:
            error = StateError(f"Cassandra at {settings.address}: {wrong}")
            error.failure_kind = FailureKind.PERMANENT
            raise error
        if settings.creates_tables and not columns:
            has_made = True
            await session.execute_schema(
                table_statement(table),
                f"create table {table.name} with {table.options or 'no options'}",
                "correct taskManager.cassandra.table_options, or those of the state",
            )
    if settings.creates_tables:
        await one_schema(session, settings.ddl_timeout_ms if has_made else _FOUND_MS)
    await warn_of_lost_writes(session)


async def one_schema(session: Session, timeout_ms: int) -> None:
    """Wait until all nodes have one schema: a statement goes to any of them.

    Nodes that are down stay with what they had, so that this ends after a time.
    """
    alike, seen = 0, frozenset[str]()
    for _ in range(max(1, round(timeout_ms / 1e3 / _LOOK_AGAIN_S))):
        own = await session.read_schema("SELECT schema_version FROM system.local")
        others = await session.read_schema("SELECT schema_version FROM system.peers")
        before, seen = seen, schema_versions(row.schema_version for rows in (own, others) for row in rows)
        alike = alike + 1 if len(seen) <= 1 and (not alike or seen == before) else 0
        if alike >= _LOOKS_ALIKE:
            return
        if not alike:
            await asyncio.sleep(_LOOK_AGAIN_S)
    log.warning(
        "nodes of Cassandra at %s have %d versions of its schema after %d ms; one of them may be down",
        session.settings.address,
        len(seen),
        timeout_ms,
    )


def schema_versions(told: Iterable[object]) -> frozenset[str]:
    """The versions that nodes have; of one that was never reached there is none."""
    return frozenset(str(version) for version in told if version is not None)


async def _columns(session: Session, name: str) -> dict[str, str]:
    """Kinds of the columns of a table; none: it is not there."""
    rows = await session.read_schema(columns_query(name))
    return {row.column_name: row.kind for row in rows}
