"""The Kafka sinks: exactly once by transactions, or at least once.

A transaction holds the rows between two checkpoints. Rows are sent as they come, and also written to a *row log* in
the checkpoint store (``weir.operators.sinks.row_logs``). The barrier brings both to the disks. When the checkpoint is
complete the transaction is committed, and with it its *mark*: its number, as an offset of a consumer group that only
this subtask uses. Kafka commits both or neither.

The client cannot go on with a transaction that another process has left open. So the next deployment takes over the
transactional id, which aborts it, and looks for the mark: if it is there, the transaction was committed before; if
not, the rows of the log are sent again. Unlike with other systems, no row is lost when a transaction times out.

A transaction that waits for its commit keeps its producer, so the next one takes another *slot*: a producer with a
transactional id of its own. Records of a partition are in the order in which they were sent, so slots keep it.

The group is made by chance when a run begins, one per subtask, and goes along in its snapshots::

    {"kind": "two_phase_sink", "version": 1, "generation": 2, "group": "weir/job/out/0/1f2e3d4c", "slots": 2,
     "transactions": [[17, {"name": ".rows-00000-000002-00000003.pending", "group": "weir/job/out/0/1f2e3d4c",
                            "slot": 1, "mark": 8589934595, "log": [".rows-...", 1234, 1767268800000000]}]]}

A mark is the generation, and in its low 32 bits the sequence: it grows with every transaction of the group.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Collection, Iterator

import pyarrow as pa

from weir.errors import InputError
from weir.operators.base import Json, OperatorContext
from weir.operators.kafka.marks import Mark, Marks
from weir.operators.kafka.producing import RecordProducer
from weir.operators.sinks.place_errors import unwritable
from weir.operators.sinks.places import Place, open_place
from weir.operators.sinks.row_logs import LOG_NAME, RowLog, RowLogWriter, log_name, log_prefix, read_logs
from weir.operators.sinks.sink import Sink
from weir.operators.sinks.two_phase import TransactionId, TwoPhaseSink
from weir.specs.kafka import KafkaSinkSpec

_GENERATION_BITS = 32


class KafkaAppendSink(Sink):
    """Guarantee: at least once. After a restart, rows since the last complete checkpoint are sent again."""

    def __init__(self, spec: KafkaSinkSpec) -> None:
        self._spec = spec

    def open(self, context: OperatorContext) -> None:
        """Connect; nothing is sent yet."""
        self._producer = RecordProducer(self._spec, context.operator_name)

    def write(self, batch: pa.RecordBatch) -> None:
        """Hand rows to the client."""
        self._producer.produce(batch)

    def flush(self) -> None:
        """Return when the brokers have them."""
        self._producer.flush()


class KafkaSink(TwoPhaseSink):
    """Guarantee: exactly once, for consumers that read committed records only. See the module."""

    def __init__(self, spec: KafkaSinkSpec) -> None:
        self._spec = spec
        #: By slot.
        self._producers: dict[int, RecordProducer] = {}
        #: Slot of each transaction that is open or waits for its commit, by the name of its log.
        self._slots: dict[str, int] = {}
        self._marks: dict[str, Marks] = {}
        self._slot = -1
        self._log: RowLogWriter | None = None
        self._place: Place | None = None

    def open(self, context: OperatorContext) -> None:
        """Take over the group of the checkpoint, or make one, besides what the base class does."""
        self._step = context.operator_name
        self._clock = context.clock
        restored = {index: value for index, value in context.restored.items() if isinstance(value, dict)}
        fresh = f"weir/{context.job_name}/{self._step}/{context.subtask_index}/{secrets.token_hex(4)}"
        self._group = restored.get(context.subtask_index, {}).get("group", fresh)
        indices = set(context.subtask_indices) - {context.subtask_index}
        #: Of other subtasks that run now, and take over their own.
        self._others = {restored[index].get("group") for index in indices & set(restored)}
        self._known_slots = {
            value["group"]: value["slots"] for value in restored.values() if "group" in value
        }
        if context.durable_uri:
            self._place = open_place(context.durable_uri)
            self._place.prepare(f".writable-{context.subtask_index}-{context.generation}")
        super().open(context)

    def start(self, context: OperatorContext, is_restart: bool) -> None:
        """End what an earlier deployment of this subtask left open, even if it only sleeps."""
        self._end_open(self._group)

    def snapshot(self, checkpoint_id: int) -> Json:
        """See the base class."""
        slots = max([1, *self._producers, *self._slots.values()]) + 1
        return {**super().snapshot(checkpoint_id), "group": self._group, "slots": slots}

    def begin(self, transaction: TransactionId) -> None:
        """Begin a transaction in a free slot, and its log."""
        prefix = log_prefix(transaction.subtask_index, transaction.generation)
        self._name = log_name(prefix, transaction.sequence)
        self._mark = (transaction.generation << _GENERATION_BITS) + transaction.sequence
        used = set(self._slots.values())
        self._slot = next(slot for slot in range(len(used) + 1) if slot not in used)
        if self._slot in self._producers and self._producers[self._slot].is_worn:
            # No transaction of it is open: its successor has nothing to end.
            del self._producers[self._slot]
        self._producer(self._group, self._slot).begin()
        self._slots[self._name] = self._slot
        if self._place is not None:
            self._log = RowLogWriter(self._place, self._name, self._clock.now_us())

    def write(self, batch: pa.RecordBatch) -> None:
        """Send rows, and add them to the log."""
        with self._explained():
            if self._log is not None:
                self._log.write(batch)
        self._producers[self._slot].produce(batch)

    def flush(self) -> None:
        """Return when the brokers have what was sent: another subtask may go on with a key, and comes after it."""
        if self._slot in self._producers and self._open_transaction is not None:
            self._producers[self._slot].flush()

    def prepare(self) -> Json:
        """Return when the brokers and the log have everything."""
        described: Json = {"name": self._name, "group": self._group, "slot": self._slot, "mark": self._mark}
        self._producers[self._slot].flush()
        if self._log is not None:
            with self._explained():
                described["log"] = self._log.seal().to_json()
            self._log = None
        return described

    def commit_prepared(self, description: Json) -> None:
        """Commit the transaction, if it is this process's; else send its rows again unless its mark is there."""
        group, slot = description["group"], description["slot"]
        if group in self._others:
            return
        mark = Mark(group, self._spec.topic, description["mark"])
        is_ours = description["name"] in self._slots
        producer = self._producer(group, slot)
        if not is_ours and self._marks_of(group).latest() < mark.value:
            producer.begin()
            for rows in self._rows_of(description):
                producer.produce(rows)
            producer.flush()
            is_ours = True
        if is_ours:
            producer.commit(mark, self._marks_of(group))
            self._slots.pop(description["name"], None)
        if self._place is not None:
            with self._explained():
                self._place.remove(description["name"])

    def abort_unlisted(self, listed: Collection[str], generation: int) -> None:
        """End transactions of subtasks that are gone, and remove logs that no checkpoint names."""
        for group in self._known_slots:
            if group != self._group and group not in self._others:
                self._end_open(group)
        if self._place is None:
            return
        with self._explained():
            for name in self._place.hidden():
                match = LOG_NAME.fullmatch(name)
                if match is not None and int(match[2]) < generation and name not in listed:
                    self._place.remove(name)

    def close(self) -> None:
        """Abort what is open, and release the clients; what is prepared stays until it is committed."""
        if self._open_transaction is not None and self._slot in self._producers:
            self._producers[self._slot].abort()
        if self._log is not None:
            with contextlib.suppress(OSError):
                self._log.abandon()

    def _end_open(self, group: str) -> None:
        """Fence whoever writes under the ids of a group; ends its open transactions."""
        for slot in range(self._known_slots.get(group, 1)):
            self._producer(group, slot)

    def _producer(self, group: str, slot: int) -> RecordProducer:
        if group != self._group:
            # Of a subtask that is gone: used once.
            return RecordProducer(self._spec, self._step, f"{group}/{slot}")
        if slot not in self._producers:
            self._producers[slot] = RecordProducer(self._spec, self._step, f"{group}/{slot}")
        return self._producers[slot]

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

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            assert self._place is not None
            raise unwritable(error, self._place.location) from error
