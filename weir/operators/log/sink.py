"""The sink of the replicated log that writes each row once (``docs/design/0014``).

The log knows no transactions, but it knows a batch again that has the number of one before. So the rows between two
checkpoints are cut into batches as they come, numbered, and held in a *row log* in the checkpoint store. Once the
checkpoint is complete they are sent: by this process, by the next one if this one dies, or by several at the same time.
All of them send the same bytes under the same numbers, and the brokers take each once.

Each subtask of each deployment has a producer id of its own, made by chance. So the numbers of rows that no checkpoint
covers may be used again, by nobody, and a start from an older checkpoint never meets a number that means other rows.

A description, in the snapshot::

    {"kind": "two_phase_sink", "version": 1, "generation": 2,
     "transactions": [[17, {"name": ".rows-00000-000002-00000003.pending", "log": [".rows-...", 1234, 1767268800000000],
                            "producer_id": 1234567890123, "last": {"0": 4, "2": 1}, "place": "file:///checkpoints/...",
                            "after": [], "settled": None, "form": 1}]]}

``last`` has the number of the last batch by partition, ``settled`` and ``after`` what :mod:`.settled` says.
"""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Collection

import pyarrow as pa
from typing_extensions import override

from weir.author.operator import Json, OperatorContext
from weir.errors import InputError
from weir.operators.log.deliveries import Deliveries
from weir.operators.log.held_batches import BatchCutter, read_held
from weir.operators.log.rows import RowEncoder
from weir.operators.log.settled import SettledMarks
from weir.operators.log.topics import partition_count
from weir.operators.sinks.late_commits import LateCommitSink
from weir.operators.sinks.places import Place, open_place, uri_beside
from weir.operators.sinks.row_logs import RowLogWriter, log_name, log_prefix
from weir.operators.sinks.two_phase import TransactionId
from weir.specs.log import LogSinkSpec

_FORM = 1
#: Of transactions that the next barrier covers.
_NEXT_CHECKPOINT = 2**62
#: A transaction that is not settled comes after all that are.
_LAST = 2**62
#: For a commit that is under way when the subtask ends; else the next deployment goes on with it.
_CLOSE_TIMEOUT_S = 1.0


class LogSink(LateCommitSink):
    """Delivers exactly once; see the module."""

    _place: Place

    def __init__(self, spec: LogSinkSpec) -> None:
        super().__init__()
        self._spec = spec
        self._log: RowLogWriter | None = None
        #: What the checkpoint lists, while the sink opens.
        self._found: list[Json] | None = None
        #: Without checkpoints rows wait in a folder of this process.
        self._own_folder: tempfile.TemporaryDirectory[str] | None = None

    def open(self, context: OperatorContext) -> None:
        """Deliver what the checkpoint lists, in order; the lowest subtask does it for all."""
        self._who = f"sink {context.operator_name}"
        self._clock, index = context.clock, context.subtask_index
        count = partition_count(self._who, self._spec.bootstrap, self._spec.topic, context.clock)
        self._encoder = RowEncoder(self._spec, context.operator_name, count)
        self._producer_id = secrets.randbits(62) | 1
        self._cutter = BatchCutter(self._producer_id, self._spec.compression, self._who)
        self._deliveries = Deliveries(self._spec, self._who)
        self._uri = context.durable_uri
        if not self._uri:
            self._own_folder = tempfile.TemporaryDirectory(
                prefix="weir-log-sink-", ignore_cleanup_errors=True
            )
            self._uri = self._own_folder.name
        self._place = open_place(self._uri)
        with self._explained():
            self._place.prepare(f".writable-{index}-{context.generation}")
        self._marks = SettledMarks(self._place, index, context.generation)
        self._found = []
        super().open(context)
        found, self._found = self._found, None
        if index == min(context.subtask_indices or (index,)):
            # Those of one subtask are listed in their order, and of two, settled ones come first.
            for description in sorted(found, key=_order_of):
                self._deliver(description)

    @override
    def abort_unlisted(self, listed: Collection[str], generation: int) -> None:
        super().abort_unlisted(listed, generation)
        with self._explained():
            self._marks.remove_earlier()

    # --- rows ---

    @override
    def begin(self, transaction: TransactionId) -> None:
        prefix = log_prefix(transaction.subtask_index, transaction.generation)
        self._name = log_name(prefix, transaction.sequence)
        self._log = RowLogWriter(self._place, self._name, self._clock.now_us())

    @override
    def write(self, batch: pa.RecordBatch) -> None:
        for partition, ids, values in self._encoder.encode(batch):
            self._hold(self._cutter.add(partition, ids, values))

    def _hold(self, rows: pa.RecordBatch | None) -> None:
        if rows is not None:
            assert self._log is not None
            with self._explained():
                self._log.write(rows)

    @override
    def prepare(self) -> Json:
        self._hold(self._cutter.rest())
        assert self._log is not None
        with self._explained():
            log = self._log.seal()
        self._log = None
        return {
            "form": _FORM,
            "name": self._name,
            "log": log.to_json(),
            "place": self._place.location,
            "producer_id": self._producer_id,
            "last": self._cutter.last_sequences(),
            "settled": None,
            "after": [],
        }

    # --- checkpoints ---

    @override
    def snapshot(self, checkpoint_id: int) -> Json:
        with self._explained():
            marks = self._marks.of_others()
        # What is open becomes one of the prepared ones.
        super().snapshot(checkpoint_id)
        with self._lock:
            self._prepared = [
                (checkpoint_id if covered == _NEXT_CHECKPOINT else covered, description)
                for covered, description in self._prepared
            ]
            for covered, description in self._prepared:
                if covered == checkpoint_id:
                    before = description["settled"] or _LAST
                    description["after"] = [name for number, name in marks if number < before]
        return super().snapshot(checkpoint_id)

    @override
    def commit(self, checkpoint_id: int) -> None:
        super().commit(checkpoint_id)
        if checkpoint_id == 0:
            self._deliveries.close()
            if self._own_folder is not None:
                self._own_folder.cleanup()

    @override
    def settle(self) -> None:
        """Mark what is not delivered, so that rows of the same keys that other subtasks get later come after it."""
        if self._open_transaction is not None:
            description = self.prepare()
            self._open_transaction = None
            with self._lock:
                self._prepared.append((_NEXT_CHECKPOINT, description))
        with self._lock:
            waiting = [description for _, description in self._prepared if description["settled"] is None]
        if not waiting:
            return
        with self._explained():
            number = self._marks.next_number()
            for description in waiting:
                self._marks.add(number, description["name"])
                description["settled"] = number

    # --- delivery ---

    @override
    def commit_prepared(self, description: Json) -> None:
        if self._found is not None:
            self._found.append(description)
            return
        for name in description["after"]:
            # Gone: its own subtask, or another one, has sent it.
            self._send_log(self._place, name)
        self._deliver(description)

    def _deliver(self, description: Json) -> None:
        """Send a transaction; several processes may do so at the same time."""
        if description.get("form") != _FORM:
            raise InputError(
                f"{self._who}: the checkpoint has rows in another form; start with the version of Weir that made it"
            )
        name, place = description["name"], self._place
        is_foreign = description["place"] != place.location
        if is_foreign:
            # Of a run in another checkpoint store, which need not be there any more if this was delivered.
            if self._is_there(description):
                return
            place = open_place(uri_beside(self._uri, description["place"]))
        if not self._send_log(place, name) and (is_foreign or not self._is_there(description)):
            raise InputError(
                f"{self._who}: {place.at(name)} is gone, with rows that are not in topic {self._spec.topic} yet; start "
                "the job with its checkpoint store, or from another checkpoint"
            )
        with self._explained():
            place.remove(name)
            if description["settled"] is not None:
                self._marks.remove(description["settled"], name)

    def _is_there(self, description: Json) -> bool:
        return self._deliveries.are_there(description["producer_id"], description["last"])

    def _send_log(self, place: Place, name: str) -> bool:
        """Send the batches of a row log; False: it is gone, since they are delivered."""
        with self._explained():
            held = read_held(place, name, self._who)
            if held is None:
                return False
            self._deliveries.send(*held)
        return True

    def close(self) -> None:
        """Release what is open; what is prepared stays until it is committed."""
        self._commits.wait(_CLOSE_TIMEOUT_S)
        if not self._commits.is_busy:
            self._deliveries.close()
        if self._log is not None:
            with contextlib.suppress(OSError):
                self._log.abandon()


def _order_of(description: Json) -> tuple[int, str]:
    return description["settled"] or _LAST, description["name"]
