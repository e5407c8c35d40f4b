"""Transactional ids of one subtask of a sink: a few *slots*, all of which the next deployment fences at its start.

A transaction that waits for its commit keeps its client, so the next one takes another slot. A slot that nobody
fences would keep its transaction open until it times out, and readers of committed records wait for that. So there is
no more than a fixed number, and which group they are of is on record before the first transaction begins: in the
checkpoint that the job starts from, or as an empty file in the checkpoint store.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from weir.errors import InputError
from weir.operators.kafka.producing import RecordProducer, awaiting_answer
from weir.operators.sinks.places import Place
from weir.specs.kafka import KafkaSinkSpec

#: Clients of a subtask. Two serve while all goes well, more while commits wait for a coordinator.
SLOTS = 4
#: Ids that are fenced at the same time: most of the half second that each takes is waiting.
_FENCED_AT_ONCE = 16
_GROUP_NAME = re.compile(r"\.group-(\d+)-(\d+)-([0-9a-f]+)")


def ids_of(group: str, slots: int = SLOTS) -> list[str]:
    """The transactional ids of a group, by slot."""
    return [f"{group}/{slot}" for slot in range(slots)]


def take_over(spec: KafkaSinkSpec, step: str, ids: Iterable[str]) -> dict[str, RecordProducer]:
    """Fence whoever writes under these ids; returns when their open transactions are ended.

    Args:
        spec: of the sink.
        step: its name, for messages.
        ids: transactional ids.

    Returns:
        A client for each id.

    Raises:
        InputError: the client refuses a property, or no broker answers.
    """
    wanted = list(ids)
    if not wanted:
        return {}
    waiting = awaiting_answer(spec, step)
    with ThreadPoolExecutor(min(len(wanted), _FENCED_AT_ONCE), "kafka-fence") as pool:
        made = pool.map(lambda name: RecordProducer(spec, step, name, waiting=waiting), wanted)
        return dict(zip(wanted, made, strict=True))


class Slots:
    """Which transaction has which client. Called by the subtask's thread and the one that commits.

    Args:
        spec: of the sink.
        step: its name, for messages.
        group: of the ids.
        has_more: there is no limit: nothing outlives this process anyway.
    """

    def __init__(self, spec: KafkaSinkSpec, step: str, group: str, *, has_more: bool = False) -> None:
        self._spec, self._step, self._group = spec, step, group
        self._has_more = has_more
        self._lock = threading.Lock()
        self._producers: dict[int, RecordProducer] = {}
        #: By the name of the transaction.
        self._taken: dict[str, int] = {}

    def start(self, producers: dict[str, RecordProducer]) -> None:
        """Take the clients of :func:`take_over` into use, by their ids; others are left there."""
        for slot, name in enumerate(ids_of(self._group)):
            self._producers[slot] = producers.pop(name)

    @property
    def free_count(self) -> int:
        """How many transactions may begin."""
        with self._lock:
            return SLOTS - len(self._taken)

    def take(self, name: str) -> RecordProducer | None:
        """A client for a transaction; None: all slots are taken."""
        with self._lock:
            used = set(self._taken.values())
            slot = next(slot for slot in range(len(used) + 1) if slot not in used)
            if slot >= SLOTS and not self._has_more:
                return None
            self._taken[name] = slot
            producer = self._producers.get(slot)
        return producer or self._renew(slot)

    def producer_of(self, name: str) -> RecordProducer | None:
        """The client of a transaction; None: it has no slot."""
        with self._lock:
            slot = self._taken.get(name)
            return None if slot is None else self._producers.get(slot)

    def release(self, name: str) -> None:
        """The transaction has ended; nothing if it has no slot.

        A worn client is replaced before another transaction may have the slot. That waits for brokers, which is why
        it is done here, by whoever commits, and not by :meth:`take`.
        """
        with self._lock:
            slot = self._taken.get(name)
            is_worn = slot is not None and self._producers[slot].is_worn
        if slot is not None and is_worn:
            try:
                self._renew(slot)
            except InputError:
                # Not of this transaction, which has ended: whoever takes the slot next tries again, and is told.
                with self._lock:
                    self._producers.pop(slot)
        with self._lock:
            self._taken.pop(name, None)

    def renew(self, name: str) -> None:
        """A new client for a transaction with a slot, of which nobody knows whether it has ended; it has, afterwards.

        Raises:
            InputError: no broker answers.
        """
        with self._lock:
            slot = self._taken.get(name)
        if slot is not None:
            self._renew(slot)

    def drop(self, name: str) -> None:
        """Release the slot of a transaction that went wrong: the next client of the slot aborts it."""
        with self._lock:
            slot = self._taken.pop(name, None)
            if slot is not None:
                self._producers.pop(slot, None)

    def _renew(self, slot: int) -> RecordProducer:
        """Give a slot a new client: it ends what the one before it has left open, and fences it."""
        producer = RecordProducer(self._spec, self._step, f"{self._group}/{slot}")
        with self._lock:
            self._producers[slot] = producer
        return producer


class GroupRecord:
    """Groups that no checkpoint names yet, as names of empty files.

    Args:
        place: of the sink in the checkpoint store.
        prefix: what the names of all groups of the sink begin with; the subtask's index and a random part follow.
    """

    def __init__(self, place: Place, prefix: str) -> None:
        self._place, self._prefix = place, prefix

    def add(self, subtask_index: int, generation: int, token: str) -> None:
        """Put a group on record, before the first transaction of it begins; may raise OSError."""
        self._place.seal([self._place.create(f".group-{subtask_index:05d}-{generation:06d}-{token}")])

    def earlier(self, generation: int) -> dict[str, str]:
        """The groups that deployments before this generation have begun with, by the name of their file."""
        matches = [_GROUP_NAME.fullmatch(name) for name in self._place.hidden()]
        return {
            match[0]: f"{self._prefix}/{int(match[1])}/{match[3]}"
            for match in matches
            if match is not None and int(match[2]) < generation
        }

    def remove(self, names: Iterable[str]) -> None:
        """Remove names that are fenced, or that a checkpoint has."""
        for name in names:
            self._place.remove(name)
