"""Who has written what into a partition: no batch is there twice, none out of order, none of a fenced producer.

The table is a part of the log: it is rebuilt from the entries, and a copy lies at the start of every segment, so that
it outlives the segments that retention removes (Redpanda #5355).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from weir.protocol.log.entries import EPOCH_START_PRODUCER, Header

#: A producer has at most so many batches under way: the answers to so many are kept.
IN_FLIGHT_BATCHES_MAX = 64
#: Of producers; the one that was idle longest is forgotten first.
PRODUCERS_MAX = 10_000
#: Of producers that wrote last, whose answers are all kept; of the others the last one is. All of it is written at the
#: start of each segment, and is sent to a follower in one message.
ANSWERED_PRODUCERS_MAX = 1_000


class Verdict(Enum):
    """What becomes of a batch that a producer has sent."""

    #: It is new, and the next one: append it.
    APPEND = "append"
    #: It is in the log: answer with its offset, once that is as safe as the producer wants it.
    DUPLICATE = "duplicate"
    #: It is in the log, or retention has removed it since: its offset was forgotten, as many came after it.
    WRITTEN = "written"
    #: Its producer's id was taken over under a higher epoch: surely not written by this call.
    FENCED = "fenced"
    #: A batch before it is absent, or nobody knows whether it is there: not written by this call.
    OUT_OF_ORDER = "out of order"


@dataclass
class ProducerState:
    """What is known of one producer."""

    epoch: int
    last_sequence: int = -1
    #: Offsets by sequence, of the last batches.
    answers: OrderedDict[int, int] = field(default_factory=OrderedDict)


class ProducerTable:
    """Producers of one partition, by id. Every replica has one and keeps it level with its log."""

    def __init__(self) -> None:
        self._producers: OrderedDict[int, ProducerState] = OrderedDict()
        #: Ids of those that wrote last, the longest idle first.
        self._answered: OrderedDict[int, None] = OrderedDict()

    def judge(self, header: Header) -> tuple[Verdict, int]:
        """Say what becomes of a batch; changes nothing.

        Returns:
            The verdict, and for a duplicate the offset at which it was written first.
        """
        known = self._producers.get(header.producer_id)
        if known is None:
            is_next = header.sequence == 0 or header.may_have_gaps
            return (Verdict.APPEND if is_next else Verdict.OUT_OF_ORDER), 0
        if header.producer_epoch < known.epoch:
            return Verdict.FENCED, 0
        last = known.last_sequence if header.producer_epoch == known.epoch else -1
        if header.sequence <= last:
            offset = known.answers.get(header.sequence)
            if offset is not None:
                return Verdict.DUPLICATE, offset
            # Without gaps every batch up to the last one is there.
            return (Verdict.OUT_OF_ORDER if header.may_have_gaps else Verdict.WRITTEN), 0
        is_next = header.sequence == last + 1 or header.may_have_gaps
        return (Verdict.APPEND if is_next else Verdict.OUT_OF_ORDER), 0

    def note(self, header: Header, offset: int) -> None:
        """Note an entry that was appended: by this leader, by another one, or found in a segment."""
        if header.producer_id == EPOCH_START_PRODUCER:
            return
        known = self._producers.get(header.producer_id)
        if known is None or header.producer_epoch > known.epoch:
            self._producers[header.producer_id] = known = ProducerState(header.producer_epoch)
        self._producers.move_to_end(header.producer_id)
        self._mark_answered(header.producer_id)
        while len(self._producers) > PRODUCERS_MAX:
            self._producers.popitem(last=False)
        if header.is_control:
            return
        known.last_sequence = header.sequence
        known.answers[header.sequence] = offset
        while len(known.answers) > IN_FLIGHT_BATCHES_MAX:
            known.answers.popitem(last=False)

    def _mark_answered(self, producer_id: int) -> None:
        self._answered[producer_id] = None
        self._answered.move_to_end(producer_id)
        while len(self._answered) > ANSWERED_PRODUCERS_MAX:
            idle, _ = self._answered.popitem(last=False)
            known = self._producers.get(idle)
            while known is not None and len(known.answers) > 1:
                known.answers.popitem(last=False)

    def epoch_of(self, producer_id: int) -> int:
        """Highest epoch under which a producer is known; 0: it is not."""
        known = self._producers.get(producer_id)
        return 0 if known is None else known.epoch

    def next_sequence(self, producer_id: int, epoch: int) -> int:
        """What follows the last batch of a producer in an epoch; 0: none is known."""
        known = self._producers.get(producer_id)
        return 0 if known is None or known.epoch != epoch else known.last_sequence + 1

    def snapshot(self) -> list[list[Any]]:
        """Return all of it in values of JSON, the longest idle first: id, epoch, last sequence, answers."""
        return [
            [producer_id, known.epoch, known.last_sequence, [list(pair) for pair in known.answers.items()]]
            for producer_id, known in self._producers.items()
        ]

    def restore(self, snapshot: Iterable[Iterable[Any]]) -> None:
        """Become what :meth:`snapshot` returned."""
        self._producers.clear()
        self._answered.clear()
        for producer_id, epoch, last_sequence, answers in snapshot:
            pairs = OrderedDict((sequence, offset) for sequence, offset in answers)
            self._producers[producer_id] = ProducerState(epoch, last_sequence, pairs)
            self._mark_answered(producer_id)
