"""The Kafka sink that writes each row once, by transactions.

A transaction holds the rows between two checkpoints. Rows are sent as they come, and also written to a *row log* in
the checkpoint store (``weir.operators.sinks.row_logs``). The barrier brings both to the disks. When the checkpoint is
complete the transaction is committed, and with it its *mark*: its number, as an offset of a consumer group that only
this subtask uses. Kafka commits both or neither.

The client cannot go on with a transaction that another process has left open. So the next deployment takes over the
transactional id, which aborts it, and looks for the mark: if it is there, the transaction was committed before; if
not, the rows of the log are sent again. Unlike with other systems, no row is lost when a transaction times out.

A transaction that waits for its commit keeps its producer, so the next one takes another *slot*: a producer with a
transactional id of its own (``slots``). Records of a partition are in the order in which they were sent, so slots keep
it. When all slots are taken, rows are written to the log only, and sent later: still in order, since nothing is sent
before them.

Commits are in a thread of their own (``sinks.late_commits``), one transaction after the other: a mark says of all
earlier ones that they are committed, too. What a commit fails with fails the subtask, and the next deployment commits.

The group is made by chance when a run begins, one per subtask, and goes along in its snapshots::

    {"kind": "two_phase_sink", "version": 1, "generation": 2, "group": "weir/job/out/0/1f2e3d4c", "slots": 4,
     "transactions": [[17, {"name": ".rows-00000-000002-00000003.pending", "group": "weir/job/out/0/1f2e3d4c",
                            "mark": 8589934595, "log": [".rows-...", 1234, 1767268800000000]}]]}

A mark is the generation, and in its low 32 bits the sequence: it grows with every transaction of the group.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Mapping

import pyarrow as pa
from typing_extensions import override

from weir.author.operator import Json, OperatorContext
from weir.errors import FailureKind, InputError
from weir.operators.kafka.marks import Mark, Marks
from weir.operators.kafka.producing import RecordProducer
from weir.operators.kafka.slots import SLOTS, GroupRecord, Slots, ids_of, take_over
from weir.operators.sinks.late_commits import LateCommitSink
from weir.operators.sinks.places import open_place
from weir.operators.sinks.row_logs import RowLog, RowLogWriter, log_name, log_prefix, read_logs
from weir.operators.sinks.two_phase import TransactionId
from weir.specs.kafka import KafkaSinkSpec

_GENERATION_BITS = 32
#: For a commit that is under way when the subtask ends; else the next deployment sends its rows again.
_CLOSE_TIMEOUT_S = 1.0


class KafkaSink(LateCommitSink):
    """Guarantee: exactly once, for consumers that read committed records only. See the module."""

    def __init__(self, spec: KafkaSinkSpec) -> None:
        super().__init__()
        self._spec = spec
        self._marks: dict[str, Marks] = {}
        #: Of the open transaction; None: its rows are only in the log.
        self._producer: RecordProducer | None = None
        #: Names of transactions, the open one too, whose rows are only in their logs.
        self._unsent: set[str] = set()
        #: Names of transactions whose commit failed: they may be committed nevertheless, or be committed any moment.
        self._unknown: set[str] = set()
        self._log: RowLogWriter | None = None

    def open(self, context: OperatorContext) -> None:
        """Take over the group of the checkpoint, or make one, besides what the base class does."""
        self._step, index = context.operator_name, context.subtask_index
        self._clock = context.clock
        prefix = f"weir/{context.job_name}/{self._step}"
        restored = {number: value for number, value in context.restored.items() if isinstance(value, dict)}
        indices = set(context.subtask_indices or (index,))
        #: Of other subtasks that run now, and take over their own.
        self._others = {restored[other].get("group") for other in (indices - {index}) & set(restored)}
        record: GroupRecord | None = None
        earlier: dict[str, str] = {}
        if context.durable_uri:
            self._place = open_place(context.durable_uri)
            self._place.prepare(f".writable-{index}-{context.generation}")
            record = GroupRecord(self._place, prefix)
        self._group = restored.get(index, {}).get("group", "")
        with self._explained():
            if not self._group:
                token = secrets.token_hex(4)
                self._group = f"{prefix}/{index}/{token}"
                if record is not None:
                    record.add(index, context.generation, token)
            if record is not None and index == min(indices):
                earlier = record.earlier(context.generation)
        slots = {value["group"]: value["slots"] for value in restored.values() if "group" in value}
        # The lowest looks after subtasks that are gone, also those that no checkpoint has.
        self._fence(slots, [*slots, *earlier.values()] if index == min(indices) else [])
        super().open(context)
        self._heirs.clear()
        if record is not None:
            with self._explained():
                record.remove(earlier)

    @override
    def snapshot(self, checkpoint_id: int) -> Json:
        return {**super().snapshot(checkpoint_id), "group": self._group, "slots": SLOTS}

    def begin(self, transaction: TransactionId) -> None:
        """Begin a transaction in a free slot, and its log."""
        prefix = log_prefix(transaction.subtask_index, transaction.generation)
        self._name = log_name(prefix, transaction.sequence)
        self._mark = (transaction.generation << _GENERATION_BITS) + transaction.sequence
        self._send_unsent()
        self._producer = None if self._unsent else self._slots.take(self._name)
        if self._producer is not None:
            self._producer.begin()
        else:
            self._unsent.add(self._name)
        if self._place is not None:
            self._log = RowLogWriter(self._place, self._name, self._clock.now_us())

    def write(self, batch: pa.RecordBatch) -> None:
        """Send rows, and add them to the log."""
        with self._explained():
            if self._log is not None:
                self._log.write(batch)
        if self._producer is not None:
            self._producer.produce(batch)

    def flush(self) -> None:
        """Return when the brokers have what was sent."""
        if self._producer is not None:
            self._producer.flush()

    def settle(self) -> None:
        """Return when the brokers have all rows: another subtask goes on with their keys, and comes after them.

        Raises:
            InputError: rows are only in the log, since too many transactions wait; a new deployment sends them.
        """
        if self._unsent:
            self._commits.wait()
            self._commits.check()
            self._send_unsent()
        if self._unsent:
            waiting = InputError(
                f"sink {self._step}: {len(self._unsent)} transactions wait for checkpoints, and their keys move to "
                "another subtask; the job begins again"
            )
            waiting.failure_kind = FailureKind.OUTAGE
            raise waiting

    def prepare(self) -> Json:
        """Return when the brokers and the log have everything."""
        described: Json = {"name": self._name, "group": self._group, "mark": self._mark}
        self.flush()
        self._producer = None
        if self._log is not None:
            with self._explained():
                described["log"] = self._log.seal().to_json()
            self._log = None
        return described

    def commit_prepared(self, description: Json) -> None:
        """Commit the transaction, if it is this process's; else send its rows again unless its mark is there."""
        name, group = description["name"], description["group"]
        if group in self._others:
            return
        mark = Mark(group, self._spec.topic, description["mark"])
        producer = self._slots.producer_of(name)
        if name in self._unknown:
            # Whatever the old client has under way has no effect from now on: the mark says what came of it.
            self._slots.renew(name)
            producer = None
        if producer is None and (name in self._unsent or self._marks_of(group).latest() < mark.value):
            if name in self._unknown:
                self._unsend_after(name)
            producer = self._send_again(description)
        if producer is not None:
            try:
                producer.commit(mark, self._marks_of(group))
            except InputError:
                self._unknown.add(name)
                raise
        self._unknown.discard(name)
        self._slots.release(name)
        if self._place is not None:
            with self._explained():
                self._place.remove(name)

    def close(self) -> None:
        """Abort what is open; what is prepared, and its clients, stay until it is committed."""
        self._commits.wait(_CLOSE_TIMEOUT_S)
        if self._producer is not None:
            self._producer.abort()
        if self._log is not None:
            with contextlib.suppress(OSError):
                self._log.abandon()

    def _fence(self, slots: Mapping[str, int], groups: Iterable[str]) -> None:
        """Fence whoever writes under the ids of our group and of others that nobody else takes over.

        Ends what earlier deployments of them left open, even if they only sleep.

        Args:
            slots: of groups in the checkpoint, which may have been made with another number of slots.
            groups: of whatever subtasks.
        """
        ours = {self._group, *groups} - self._others
        ids = [name for group in sorted(ours) for name in ids_of(group, max(SLOTS, slots.get(group, 0)))]
        #: By id: clients with which to end what subtasks that are gone have left.
        self._heirs = take_over(self._spec, self._step, ids)
        self._slots = Slots(self._spec, self._step, self._group, has_more=self._place is None)
        self._slots.start(self._heirs)

    def _send_unsent(self) -> None:
        """Send the rows of transactions that found no slot, in order, while there are slots for them and another."""
        if not self._unsent or self._commits.is_busy:
            return
        with self._lock:
            waiting = [description for _, description in self._prepared]
        for description in waiting:
            if description["name"] in self._unsent:
                if self._slots.free_count < 2:
                    return
                self._send_again(description)

    def _unsend_after(self, name: str) -> None:
        """End the transactions that were sent after this one, which is sent again: they are, too, and in order."""
        with self._lock:
            names = [description["name"] for _, description in self._prepared]
        for later in names[names.index(name) + 1 :]:
            if self._slots.producer_of(later) is not None:
                self._slots.renew(later)
                self._slots.release(later)
                self._unsent.add(later)

    def _send_again(self, description: Json) -> RecordProducer:
        """Send the rows of a log in a transaction, which stays open; returns its client."""
        name, group = description["name"], description["group"]
        if group == self._group:
            producer = self._slots.producer_of(name) or self._slots.take(name)
        else:
            producer = self._heir_of(group)
        if producer is None:
            raise AssertionError(f"no slot for {name}")
        try:
            producer.begin()
            for rows in self._rows_of(description):
                producer.produce(rows)
            producer.flush()
        except BaseException:
            self._slots.drop(name)
            raise
        self._unsent.discard(name)
        return producer

    def _heir_of(self, group: str) -> RecordProducer:
        """A client for the transactions of another group, one after the other."""
        name = ids_of(group)[0]
        if self._heirs[name].is_worn:
            self._heirs[name] = RecordProducer(self._spec, self._step, name)
        return self._heirs[name]

    def _marks_of(self, group: str) -> Marks:
        if group not in self._marks:
            self._marks[group] = Marks(self._spec, self._step, group)
        return self._marks[group]

    def _rows_of(self, description: Json) -> list[pa.RecordBatch]:
        if self._place is None or "log" not in description:
            raise InputError(
                f"sink {self._step}: the checkpoint has a transaction without a row log; start from another checkpoint"
            )
        with self._explained():
            return list(read_logs(self._place, [RowLog.from_json(description["log"])]))
