"""Who writes the rows of a run, and up to which checkpoint: one row of the database for each run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

from weir.errors import FailureKind, StateError
from weir.protocol.database_run import DatabaseRun
from weir.state.cassandra.errors import Untyped
from weir.state.cassandra.schema import BUCKETS_COLUMN, RUNS_TABLE, StateTable, changed_buckets, columns_query
from weir.state.cassandra.session import CheckCancelled, Session, never_cancelled

log = logging.getLogger(__name__)


class RunClaim:
    """The claim of one run. Methods may be called from any thread, and block.

    Args:
        session: with the database.
        run: whose rows.
        tables: where they are.
    """

    def __init__(self, session: Session, run: DatabaseRun, tables: Collection[StateTable]) -> None:
        self.session = session
        self.run = run
        self._claimed = tables
        #: A table of runs that an older version has made has no column for buckets.
        self._knows_buckets = False
        #: The look that has not begun yet; one at a time does.
        self._next_look: asyncio.Future[int] | None = None
        self._looking = asyncio.Lock()

    def claim(self, owner: str, restored_id: int, check_cancelled: CheckCancelled = never_cancelled) -> None:
        """Let this job write from now on; called when a job is deployed, by each of its task managers.

        Args:
            owner: id of the job.
            restored_id: the checkpoint that it starts from; 0: none.
            check_cancelled: raises when the caller is to stop.

        Raises:
            StateError: the database is ahead of the checkpoint: its changes cannot be taken back; or its rows lie in
                another number of buckets.
        """
        self.session.run(self._claim(owner, restored_id), check_cancelled)

    async def _claim(self, owner: str, restored_id: int) -> None:
        columns = {row.column_name for row in await self.session.read_schema(columns_query(self._runs))}
        self._knows_buckets = "buckets" in columns
        if columns and not self._knows_buckets:
            log.warning(
                "%s is of an older version: a change of buckets would not be noticed; mend: ALTER TABLE %s ADD %s",
                self._runs,
                self._runs,
                BUCKETS_COLUMN,
            )
        known, begun, buckets = await self._look()
        self._check_buckets(buckets)
        if restored_id and begun > self.run.timestamp(restored_id):
            raise _ahead(self, begun, restored_id)
        if known != owner:
            text = f"UPDATE {self._runs} SET owner = ? WHERE run = ?"
            update = await self.session.prepare(text)
            await self._do(update, [owner, self.run.name], f"write {self._runs}")
        new = {table.name: table.buckets for table in self._claimed if table.name not in buckets}
        if new and self._knows_buckets:
            update = await self.session.prepare(
                f"UPDATE {self._runs} SET buckets = buckets + ? WHERE run = ?"
            )
            await self._do(update, [new, self.run.name], f"write {self._runs}")

    def _check_buckets(self, known: Mapping[str, int]) -> None:
        wrong = changed_buckets(self._claimed, known)
        if wrong:
            error = StateError(f"Cassandra at {self.session.settings.address}: {wrong}")
            error.failure_kind = FailureKind.PERMANENT
            raise error

    def begin(self, owner: str, checkpoint_id: int, check_cancelled: CheckCancelled) -> None:
        """Note that changes of a checkpoint are about to be written.

        Raises:
            StateError: another job has taken the run over, or a task manager has other settings.
        """
        self.session.run(self._begin(owner, checkpoint_id), check_cancelled)

    async def _begin(self, owner: str, checkpoint_id: int) -> None:
        known, begun, buckets = await self._look()
        # Again: of two task managers with different settings each may have looked before the other one wrote.
        self._check_buckets(buckets)
        stamp = self.run.timestamp(checkpoint_id)
        if known not in ("", owner):
            error = StateError(
                f"job {known} has taken over the state of job {owner} in {self._runs}; this job must not go on"
            )
            error.failure_kind = FailureKind.PERMANENT
            raise error
        if begun < stamp:
            text = f"UPDATE {self._runs} USING TIMESTAMP ? SET begun = ? WHERE run = ?"
            update = await self.session.prepare(text)
            await self._do(update, [stamp, stamp, self.run.name], f"write {self._runs}")

    def begun(self) -> int:
        """The highest timestamp of which changes may have been written."""
        return self.session.run(self._look())[1]

    async def begun_by_now(self) -> int:
        """Do :meth:`begun` in the session's thread; who asks before a look has begun shares it."""
        if self._next_look is None:
            self._next_look = asyncio.ensure_future(self._look_once())
        # Another one may still want it.
        return await asyncio.shield(self._next_look)

    async def _look_once(self) -> int:
        async with self._looking:
            self._next_look = None
            return (await self._look())[1]

    async def _look(self) -> tuple[str, int, dict[str, int]]:
        """The job that writes, the highest timestamp that may have been written, and the buckets of each table."""
        columns = "owner, begun, buckets" if self._knows_buckets else "owner, begun"
        select = await self.session.prepare(f"SELECT {columns} FROM {self._runs} WHERE run = ?")
        row = (await self._do(select, [self.run.name], f"read {self._runs}")).first()
        if row is None:
            return "", 0, {}
        return row.owner or "", row.begun or 0, (row.buckets if self._knows_buckets else None) or {}

    async def _do(self, prepared: Untyped, values: list[object], doing: str) -> Untyped:
        return await self.session.execute(lambda: bound(prepared, values), doing)

    @property
    def _runs(self) -> str:
        return f"{self.session.settings.keyspace}.{RUNS_TABLE}"


def bound(prepared: Untyped, values: list[object], page_state: bytes = b"") -> Untyped:
    """A prepared statement with its values, from a page on."""
    statement = prepared.bind()
    statement.bind_list(values)
    if page_state:
        statement.set_page_state(page_state)
    return statement


def _ahead(claim: RunClaim, begun: int, restored_id: int) -> StateError:
    run = claim.run
    error = StateError(
        f"the tables in keyspace {claim.session.settings.keyspace} have changes of checkpoint {begun - run.base}, "
        f"later ones than checkpoint {restored_id} that the job is to start from: a database cannot go back; start "
        "from the latest checkpoint, or anew with --start-fresh"
    )
    error.failure_kind = FailureKind.PERMANENT
    return error
