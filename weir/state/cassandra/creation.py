"""Makes the tables of a job's states in the database, or says how they have to be made."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from weir.errors import FailureKind, StateError
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
    if settings.creates_tables and (await session.read_schema(keyspace_query(settings))).first() is None:
        await session.execute_schema(
            keyspace_statement(settings),
            f"create keyspace {settings.keyspace}",
            "correct taskManager.cassandra.replication",
        )
    if settings.creates_tables and not await _columns(session, runs):
        await session.execute_schema(runs_statement(settings), f"create table {runs}")
    for table in tables:
        columns = await _columns(session, table.name)
        wrong = misfit(table, columns) if columns else ""
        if wrong:
            error = StateError(f"Cassandra at {settings.address}: {wrong}")
            error.failure_kind = FailureKind.PERMANENT
            raise error
        if settings.creates_tables and not columns:
            await session.execute_schema(
                table_statement(table),
                f"create table {table.name} with {table.options or 'no options'}",
                "correct taskManager.cassandra.table_options, or those of the state",
            )


async def _columns(session: Session, name: str) -> dict[str, str]:
    """Kinds of the columns of a table; none: it is not there."""
    rows = await session.read_schema(columns_query(name))
    return {row.column_name: row.kind for row in rows}
