"""The database that keeps the state of a job, as seen by one task manager."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from weir.clock import Clock
from weir.config import TaskManagerConfig
from weir.config.stores import CassandraConfig
from weir.errors import CheckpointError, FailureKind
from weir.plan.graph import LogicalGraph
from weir.protocol.database_run import parse_run
from weir.protocol.queries import Question
from weir.state.api import StateBackend
from weir.state.placement.placed_store import PlacedStore
from weir.state.placement.remote import RemoteStateClient
from weir.types import StoreStats

if TYPE_CHECKING:
    from weir.state.cassandra.applying import Applying
    from weir.state.cassandra.image_rows import ImageOverRows
    from weir.state.cassandra.store import DatabaseStore
    from weir.state.cassandra.tables import DatabaseTables

#: Of declared states: those of which a key has a range of entries.
_ORDERED_KINDS = ("list", "map", "versioned", "window", "session")


class JobDatabase:
    """Made by :func:`open_job_database`; closed with the job."""

    def __init__(self, tables: DatabaseTables, applying: Applying) -> None:
        self.tables = tables
        self.applying = applying

    def store(
        self,
        changes: PlacedStore,
        passed_id: Callable[[], int],
        ended_id: int,
        check_cancelled: Callable[[], None],
    ) -> DatabaseStore:
        """The state of a keyed subtask, whose changes are applied from now on; see ``DatabaseStore``."""
        from weir.state.cassandra.store import DatabaseStore

        store = DatabaseStore(
            changes,
            self.tables,
            passed_id=passed_id,
            ended_id=ended_id,
            check_cancelled=check_cancelled,
            pressure=self.applying,
        )
        self.applying.add(store)
        return store

    def at_checkpoint(self, image: RemoteStateClient, checkpoint_id: int) -> ImageOverRows:
        """The state of a checkpoint, whose images have changes only."""
        from weir.state.cassandra.image_rows import ImageOverRows

        return ImageOverRows(image, self.tables, checkpoint_id)

    def check_question(self, question: Question, state_id: int) -> None:
        """Called before a question about a range of a state's keys is answered.

        Raises:
            QueryError: 400: the state's table has no ranges, or is not to be counted.
        """
        from weir.state.cassandra.image_rows import check_question

        check_question(self.tables.tables.get(state_id), question)

    def stats(self, store: StateBackend) -> StoreStats:
        """Return the figures of the local store, and how the database does."""
        session = self.tables.session
        return replace(
            store.stats(),
            away_s=session.away_s,
            waiting_checkpoints=self.applying.waiting_checkpoints,
            requests=session.requests,
            requests_s=session.requests_s,
        )

    @property
    def waits_for(self) -> str:
        """Say that the database does not answer, since when and why, in one line; empty: it answers."""
        return self.tables.session.why_away

    def close(self) -> None:
        """Stop applying, and give the session back."""
        from weir.state.cassandra.session import leave_session

        self.applying.close()
        leave_session(self.tables.session)


def _give_up_after(settings: CassandraConfig, clock: Clock) -> Callable[[], None]:
    """Raises when a deployment has waited for long enough: the job says why, and is deployed again with a pause."""
    from weir.state.cassandra.errors import DatabaseAwayError

    until_s = clock.monotonic_s() + settings.give_up_after_ms / 1e3

    def check() -> None:
        if clock.monotonic_s() > until_s:
            raise DatabaseAwayError(
                f"Cassandra at {settings.address} does not answer; see whether it runs and taskManager.cassandra names "
                "its address"
            )

    return check


def ordered_states(graph: LogicalGraph) -> list[str]:
    """States of a job whose entries are read in order, as ``step/state``."""
    return [
        f"{node.name}/{state.name}"
        for node in graph.nodes
        for state in getattr(node.spec, "states", ())
        if state.kind in _ORDERED_KINDS
    ]


def open_job_database(
    config: TaskManagerConfig,
    job_name: str,
    job_id: str,
    run: str,
    state_ids: Mapping[str, int],
    asked: Collection[str],
    ordered: Collection[str],
    restored_id: int,
    clock: Clock,
    *,
    has_checkpoints: bool,
) -> JobDatabase | None:
    """Connect to the database, make its tables ready, and claim the job's rows; None: state is not in a database.

    Args:
        config: says where it is.
        job_name: of the dataflow: tables are named after it.
        job_id: who claims the rows.
        run: whose rows, in the form of ``DatabaseRun``.
        state_ids: numbers of the states, by ``step`` or ``step/state``.
        asked: states that can be asked, as ``step/state``: settings may name them so.
        ordered: see :func:`ordered_states`.
        restored_id: the checkpoint that the job starts from; 0: none.
        clock: of the time for which a database that does not answer is waited for.
        has_checkpoints: whether there is a checkpoint store.

    Raises:
        ConfigError: names of tables clash.
        CheckpointError: the job makes no checkpoints.
        StateError: the database refuses something, or is ahead of the checkpoint.
    """
    if config.state_backend != "cassandra":
        return None
    if not has_checkpoints:
        error = CheckpointError(
            "state in Cassandra is written when a checkpoint is complete, and this job makes none: "
            "set controlPlane.checkpoint_uri"
        )
        error.failure_kind = FailureKind.PERMANENT
        raise error
    from weir.state.cassandra.applying import Applying
    from weir.state.cassandra.schema import state_tables
    from weir.state.cassandra.session import leave_session, open_session
    from weir.state.cassandra.tables import DatabaseTables

    settings = config.cassandra
    by_state = state_tables(job_name, state_ids, settings, asked, ordered)
    check = _give_up_after(settings, clock)
    session = open_session(settings, check_cancelled=check)
    try:
        tables = DatabaseTables(session, parse_run(run), by_state)
        tables.create(check)
        tables.claim(job_id, restored_id, check)
    except BaseException:
        leave_session(session)
        raise
    return JobDatabase(tables, Applying(tables, job_id, settings.apply_pause_ms_max / 1e3, clock))
