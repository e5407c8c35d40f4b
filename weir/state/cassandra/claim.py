"""Who writes the rows of a run, and up to which checkpoint: one row of the database for each run."""

from __future__ import annotations

from weir.errors import FailureKind, StateError
from weir.protocol.database_run import DatabaseRun
from weir.state.cassandra.errors import Untyped
from weir.state.cassandra.schema import RUNS_TABLE
from weir.state.cassandra.session import CheckCancelled, Session, never_cancelled


class RunClaim:
    """The claim of one run. Methods may be called from any thread, and block.

    Args:
        session: with the database.
        run: whose rows.
    """

    def __init__(self, session: Session, run: DatabaseRun) -> None:
        self.session = session
        self.run = run

    def claim(self, owner: str, restored_id: int, check_cancelled: CheckCancelled = never_cancelled) -> None:
        """From now on this job writes; called when a job is deployed, by each of its task managers.

        Args:
            owner: id of the job.
            restored_id: the checkpoint that it starts from; 0: none.
            check_cancelled: raises when the caller is to stop.

        Raises:
            StateError: the database is ahead of the checkpoint: its changes cannot be taken back.
        """
        self.session.run(self._claim(owner, restored_id), check_cancelled)

    async def _claim(self, owner: str, restored_id: int) -> None:
        known, begun = await self._look()
        if restored_id and begun > self.run.timestamp(restored_id):
            raise _ahead(self, begun, restored_id)
        if known != owner:
            text = f"UPDATE {self._runs} SET owner = ? WHERE run = ?"
            update = await self.session.prepare(text)
            await self._do(update, [owner, self.run.name], f"write {self._runs}")

    def begin(self, owner: str, checkpoint_id: int, check_cancelled: CheckCancelled) -> None:
        """Note that changes of a checkpoint are about to be written.

        Raises:
            StateError: another job has taken the run over.
        """
        self.session.run(self._begin(owner, checkpoint_id), check_cancelled)

    async def _begin(self, owner: str, checkpoint_id: int) -> None:
        known, begun = await self._look()
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

    async def _look(self) -> tuple[str, int]:
        """The job that writes, and the highest timestamp that may have been written."""
        select = await self.session.prepare(f"SELECT owner, begun FROM {self._runs} WHERE run = ?")
        row = (await self._do(select, [self.run.name], f"read {self._runs}")).first()
        return ("", 0) if row is None else (row.owner or "", row.begun or 0)

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
