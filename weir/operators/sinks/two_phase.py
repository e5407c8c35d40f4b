"""Two-phase commit for sinks: rows become visible exactly once, when the checkpoint that covers them is complete.

A *transaction* holds the rows between two checkpoints of one subtask. :meth:`TwoPhaseSink.prepare` makes it durable
but not visible, at the barrier; its description goes into the checkpoint. :meth:`TwoPhaseSink.commit_prepared` makes
it visible once the checkpoint is complete. If the process dies in between, the next deployment finds the description
in the checkpoint and commits it; what no checkpoint describes is aborted, and its rows come again from the sources.

The snapshot::

    {"kind": "two_phase_sink", "version": 1, "generation": 2,
     "transactions": [[17, {...}]]}        checkpoint and description of what is not known to be committed
"""

from __future__ import annotations

import copy
import threading
from abc import abstractmethod
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import pyarrow as pa

from weir.author.operator import Json, Operator, OperatorContext
from weir.errors import GraphError, StateError, StateMismatchError
from weir.operators.delegate import UserOperator
from weir.rows.records import as_authors_see
from weir.specs import UserSinkSpec

VERSION = 1
_KIND = "two_phase_sink"


@dataclass(frozen=True, slots=True, order=True)
class TransactionId:
    """Names a transaction among all that a sink ever has; sorted, those of a subtask are in the order of its rows."""

    subtask_index: int
    #: Of the deployment; grows with every restart, so that a process that is late never uses a name of its successor's.
    generation: int
    #: From 1 on in each generation.
    sequence: int


class TwoPhaseSink(Operator):
    """Base of transactional sinks: exactly once, if the methods below keep their word.

    Called in this order: ``start``; then, for each transaction, ``begin``, ``write`` for every batch, ``prepare`` at
    the next checkpoint; ``commit_prepared`` later. The next transaction begins while earlier ones wait for their
    commit, and only when there are rows. At a start from a checkpoint ``commit_prepared`` is called for all that it
    lists, possibly by more than one subtask, then ``abort_unlisted``, both before ``start``.

    Descriptions are JSON values and all that a commit needs, in any process: they live in checkpoints, which a
    later version of the sink must be able to read.

    A subclass that overrides ``open``, ``process``, ``finish`` or ``close`` calls the method of this class too.
    """

    _open_transaction: TransactionId | None = None

    def start(self, context: OperatorContext, is_restart: bool) -> None:
        """Prepare to write; called once, by ``open``.

        Args:
            context: of the subtask.
            is_restart: the job goes on from a checkpoint. If not, the sink's target should be fresh.

        Raises:
            InputError: the target cannot be written, or holds the results of an earlier run.
        """

    @abstractmethod
    def begin(self, transaction: TransactionId) -> None:
        """Open a transaction: what is written next belongs to it. It must be invisible to readers."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Write the rows (at least one) to the open transaction.

        Besides their own columns they have ``_event_time_ms`` and ``_ingest_time_us`` (:mod:`weir.rows.records`).
        """

    @abstractmethod
    def prepare(self) -> Json:
        """Make the open transaction durable: from now on it survives the death of the process. Still invisible.

        Returns:
            A description from which any process can commit it.
        """

    @abstractmethod
    def commit_prepared(self, description: Json) -> None:
        """Make a prepared transaction visible, at once and as a whole.

        Must be idempotent, and do nothing if the transaction is gone: it was committed before, or a newer deployment
        aborted it. May be called in any thread, after ``close`` too.
        """

    def abort_unlisted(self, listed: Collection[str], generation: int) -> None:
        """Drop what deployments before this generation left without a commit, except what is listed.

        Called by the lowest subtask at a start from a checkpoint. A deployment that only slept must not be
        able to commit what was dropped.

        Args:
            listed: ``key_of`` of the transactions that the checkpoint lists; they were committed a moment ago.
            generation: of this deployment.
        """

    def key_of(self, description: Json) -> str:
        """What identifies a described transaction for :meth:`abort_unlisted`; its ``name``, unless overridden."""
        return str(description["name"])

    # --- the operator's contract ---

    def open(self, context: OperatorContext) -> None:
        """Commit what the checkpoint lists, drop what it does not, then :meth:`start`.

        Raises:
            StateError: the checkpoint holds something else.
        """
        self._context = context
        self._lock = threading.Lock()
        self._sequence = 0
        #: Checkpoint and description of what is prepared and not known to be committed, oldest first.
        self._prepared: list[tuple[int, Json]] = []
        listed = {
            index: self._listed(value) for index, value in context.restored.items() if value is not None
        }
        lowest = context.subtask_index == min(context.subtask_indices or (context.subtask_index,))
        for index, descriptions in sorted(listed.items()):
            # Each subtask its own too: without a shared directory only its machine may have them.
            if lowest or index == context.subtask_index:
                for description in descriptions:
                    self.commit_prepared(description)
        if lowest and context.restored:
            keys = {self.key_of(item) for descriptions in listed.values() for item in descriptions}
            self.abort_unlisted(keys, context.generation)
        self.start(context, bool(context.restored))

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Write the rows to the open transaction."""
        if self._open_transaction is None:
            self._sequence += 1
            transaction = TransactionId(self._context.subtask_index, self._context.generation, self._sequence)
            self.begin(transaction)
            self._open_transaction = transaction
        self.write(as_authors_see(batch))
        return ()

    def snapshot(self, checkpoint_id: int) -> Json:
        """Prepare the open transaction; returns all that are not known to be committed."""
        if self._open_transaction is not None:
            # The sink may go on changing it.
            description = copy.deepcopy(self.prepare())
            self._open_transaction = None
            with self._lock:
                self._prepared.append((checkpoint_id, description))
        with self._lock:
            transactions = [[checkpoint, description] for checkpoint, description in self._prepared]
        return {
            "kind": _KIND,
            "version": VERSION,
            "generation": self._context.generation,
            "transactions": transactions,
        }

    def commit(self, checkpoint_id: int) -> None:
        """Make visible what belongs to this checkpoint or an earlier one."""
        while (description := self._next_of(checkpoint_id)) is not None:
            # Not locked: it may take long, and a snapshot need not wait for it.
            self.commit_prepared(description)
            with self._lock:
                del self._prepared[0]

    def _next_of(self, checkpoint_id: int) -> Json | None:
        """The oldest transaction, if a complete checkpoint covers it."""
        with self._lock:
            if not self._prepared:
                return None
            covered, description = self._prepared[0]
            # The last transaction has id 0 and comes after all others.
            is_later = checkpoint_id != 0 and (covered == 0 or covered > checkpoint_id)
            return None if is_later else description

    def _listed(self, value: Json) -> list[Json]:
        step = f"sink {self._context.operator_name}"
        if not isinstance(value, dict) or value.get("kind") != _KIND or value.get("version") != VERSION:
            raise StateMismatchError(
                f"{step}: the checkpoint holds something else than transactions of version {VERSION}; "
                "give the sink another name, or start with the version of Weir that made the checkpoint"
            )
        if value["generation"] >= self._context.generation:
            raise StateError(
                f"{step}: the checkpoint is of generation {value['generation']}, this deployment has only generation "
                f"{self._context.generation}; start the job anew from the checkpoint"
            )
        return [description for _, description in value["transactions"]]


def create_user_sink(spec: UserSinkSpec) -> Operator:
    """What runs the sink that the user's factory makes; for ``weir.operators.registry``.

    Raises:
        GraphError: it is no operator.
    """
    sink = spec.factory()
    if not isinstance(sink, Operator):
        raise GraphError(
            f"a UserSink's factory gave {type(sink).__name__}, not a TwoPhaseSink or another Operator"
        )
    return sink if isinstance(sink, TwoPhaseSink) else UserOperator(sink)
