"""What one subtask reads of Kafka: a client for all of its partitions, and the records that wait, by partition."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from weir.clock import Clock
from weir.errors import FailureKind, InputError
from weir.operators.kafka.client_errors import (
    ABSENT,
    is_refusal,
    is_wrong_password,
    more_telling,
    unreachable,
)
from weir.operators.kafka.client_log import client_log
from weir.operators.kafka.records import Message
from weir.operators.kafka.topic_ids import TopicIds
from weir.specs.kafka import KafkaSpec

log = logging.getLogger(__name__)

Partition = tuple[str, int]

#: As a position: the first record that there is, whichever that is.
BEGINNING = OFFSET_BEGINNING
#: Records that are asked for at a time, and that wait at most before more are asked for.
RECORDS_MAX = 16_384
_WAITING_BYTES_MAX = 8 << 20
_ANSWER_TIMEOUT_S = 30.0
_ENDS_TIMEOUT_S = 5.0
#: Between two looks whether the brokers let this user in: the client only says that it had no answer.
_LOOK_S = 2.0
_TOLD_EVERY_S = 10.0
#: Bytes that the client fetches ahead.
_QUEUED_KIB_MAX = 32 << 10
_WRONG = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "the user may not read it; grant READ and DESCRIBE",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "the user may not use the group; grant READ on it",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "it is gone; create it again, or take it out of the source",
    KafkaError._UNKNOWN_TOPIC: "it is gone; create it again, or take it out of the source",
    KafkaError._UNKNOWN_PARTITION: "it is gone; start without the checkpoint, which names it",
}
_GONE = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
#: What brokers say to who commits positions of a group that has members.
_NOT_ALONE = (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS)


class KafkaPartitions:
    """Reads partitions from given positions on. All methods are called by one thread.

    Raises:
        InputError: the client refuses a property.
    """

    def __init__(self, spec: KafkaSpec, step: str, clock: Clock) -> None:
        self._spec, self._step, self._clock = spec, step, clock
        #: Of the topics that are read.
        self.topic_ids = TopicIds(spec, f"source {step}")
        self._error: KafkaError | None = None
        self._told_s = self._told_commit_s = -_TOLD_EVERY_S
        #: Not given out yet; of every partition that is read.
        self._waiting: dict[Partition, deque[Message]] = {}
        self._waiting_count = 0
        self._waiting_bytes = 0
        self._ended: set[Partition] = set()
        #: Where each ended when it was last read to its end.
        self._end_offsets: dict[Partition, int] = {}
        #: Asks the brokers for partitions while records are read: they may take long to answer, if they are away.
        self._asking = ThreadPoolExecutor(1, "kafka-partitions")
        self._asked: Future[list[Partition]] | None = None
        settings: dict[str, Any] = {
            "group.id": f"weir-{step}",
            "queued.max.messages.kbytes": _QUEUED_KIB_MAX,
            "fetch.wait.max.ms": 50,
            **spec.properties,
            "bootstrap.servers": spec.bootstrap,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error" if spec.on_truncation == "fail" else spec.on_truncation,
            "enable.partition.eof": True,
            "error_cb": self._note_error,
            "on_commit": self._note_commit,
        }
        settings.setdefault("isolation.level", "read_committed")
        try:
            self._consumer = Consumer(settings, logger=client_log)
        except KafkaException as error:
            raise InputError(f"source {step}: {error.args[0].str()}; correct properties") from None

    def ask_for_partitions(self) -> None:
        """Begin to look for partitions, unless that is under way; returns at once."""
        if self._asked is None:
            self._asked = self._asking.submit(self.partitions)

    def has_found(self) -> bool:
        """Return whether brokers have answered, or have not for too long, since :meth:`ask_for_partitions`."""
        return self._asked is not None and self._asked.done()

    def pop_found(self) -> list[Partition] | None:
        """What brokers answered, once; None: nothing yet, or they are away, which is told.

        Raises:
            InputError: as :meth:`partitions`, unless brokers are away.
        """
        if not self.has_found():
            return None
        assert self._asked is not None
        asked, self._asked = self._asked, None
        try:
            return asked.result()
        except InputError as error:
            if error.failure_kind is not FailureKind.OUTAGE:
                raise
            log.warning("%s; new partitions are looked for again later", error)
            return None

    def partitions(self) -> list[Partition]:
        """Every partition of the source's topics, in order.

        Raises:
            InputError: a topic is not there, or may not be read; or no broker answers, which is waited for; or a topic
                was made anew, which the next deployment deals with.
        """
        found = self._list_topics()
        names = sorted(found) if self._spec.pattern else self._spec.topics
        chosen = [name for name in names if self._is_chosen(name)]
        for name in chosen:
            told = found[name].error if name in found else None
            if told is not None and told.code() not in ABSENT:
                # It has no leader for a moment, or may not be read.
                raise self._failure(told)
            if name not in found or told is not None:
                raise InputError(
                    f"source {self._step}: topic {name} is not at {self._spec.bootstrap}; create it, or correct topics"
                )
        if not chosen:
            log.warning(
                "source %s: none of the topics at %s matches %r so far",
                self._step,
                self._spec.bootstrap,
                self._spec.pattern,
            )
        self.topic_ids.check(chosen, _ANSWER_TIMEOUT_S)
        return [(name, number) for name in chosen for number in sorted(found[name].partitions)]

    def _list_topics(self) -> Mapping[str, Any]:
        ends_s = self._clock.monotonic_s() + _ANSWER_TIMEOUT_S
        # While partitions are read, whoever reads them lets the client tell of errors of connections.
        is_first = not self._waiting
        look_s = min(_LOOK_S, _ANSWER_TIMEOUT_S) if is_first else _ANSWER_TIMEOUT_S
        while True:
            try:
                return dict(self._consumer.list_topics(timeout=look_s).topics)
            except KafkaException as error:
                if is_first:
                    self._consumer.poll(look_s / 10)
                    if self._error is not None and is_wrong_password(self._error):
                        raise self._failure(self._error) from None
                if self._clock.monotonic_s() >= ends_s or not is_first:
                    # The call says only that it had no answer; the connections have said why: of certificates, or that
                    # one side speaks TLS and the other does not.
                    noted = self._error if is_first else None
                    raise self._failure(noted or error.args[0]) from None

    def made_anew(self, ids: Mapping[str, str]) -> list[str]:
        """Return the topics that were made anew, as ``TopicIds`` says."""
        return self.topic_ids.made_anew(ids, _ANSWER_TIMEOUT_S)

    def start_anew(self, partition: Partition) -> int:
        """The offset from which to read a partition of a topic that was made anew.

        Raises:
            InputError: no broker answers.
        """
        return self.end_of(partition) if self._spec.on_truncation == "latest" else BEGINNING

    def _is_chosen(self, name: str) -> bool:
        if not self._spec.pattern:
            return True
        # Kafka's own clients pass its internal topics over, too.
        return not name.startswith("__") and re.fullmatch(self._spec.pattern, name) is not None

    def start_of(self, partition: Partition) -> int:
        """The offset from which to read a partition that was there when the job began; one that turns up is read whole.

        Raises:
            InputError: no broker answers.
        """
        start = self._spec.start
        if start == "earliest":
            # The client finds it when the partition's broker is there.
            return BEGINNING
        asked = TopicPartition(*partition)
        try:
            if isinstance(start, int):
                asked.offset = start
                (found,) = self._consumer.offsets_for_times([asked], timeout=_ANSWER_TIMEOUT_S)
                if found.offset >= 0:
                    return int(found.offset)
                start = "latest"
            if isinstance(start, tuple):
                places = {(topic, number): offset for topic, number, offset in start}
                return places.get(partition, BEGINNING)
        except KafkaException as error:
            raise self._failure(error.args[0]) from None
        return self.end_of(partition)

    def ends(self) -> dict[Partition, int]:
        """Offsets after the last records of those that are read; another thread may ask.

        Raises:
            KafkaException: no broker answers.
            RuntimeError: the client is closed.
        """
        found = {}
        for partition in list(self._waiting):
            _, found[partition] = self._consumer.get_watermark_offsets(
                TopicPartition(*partition), timeout=_ENDS_TIMEOUT_S
            )
        return found

    def reached(self, partition: Partition, position: int) -> int:
        """The offset before which all records were taken: the ends of transactions are no records, and have offsets."""
        return (
            position if self._waiting.get(partition) else max(position, self._end_offsets.get(partition, 0))
        )

    def end_of(self, partition: Partition) -> int:
        """The offset after the last record of a partition.

        Raises:
            InputError: no broker answers.
        """
        asked = TopicPartition(*partition)
        try:
            _, stop = self._consumer.get_watermark_offsets(asked, timeout=_ANSWER_TIMEOUT_S)
        except KafkaException as error:
            raise self._failure(error.args[0]) from None
        return int(stop)

    def add(self, partition: Partition, offset: int) -> None:
        """Read a partition, too, from this offset on."""
        self._waiting[partition] = deque()
        self._consumer.incremental_assign([TopicPartition(*partition, offset)])

    def remove(self, partition: Partition) -> None:
        """Read it no more."""
        self._count_out(self._waiting.pop(partition))
        self._consumer.incremental_unassign([TopicPartition(*partition)])

    def fetch(self) -> set[Partition]:
        """Take what the client has at hand; returns the partitions of which records wait.

        Raises:
            InputError: a partition cannot be read any further, whatever happens.
        """
        if self._waiting and self._waiting_count < RECORDS_MAX and self._waiting_bytes < _WAITING_BYTES_MAX:
            for message in self._consumer.consume(RECORDS_MAX, timeout=0):
                error = message.error()
                partition = (str(message.topic()), int(message.partition() or 0))
                if error is None:
                    if partition in self._waiting:
                        self._waiting[partition].append(message)
                        self._waiting_count += 1
                        self._waiting_bytes += len(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._ended.add(partition)
                    self._end_offsets[partition] = int(message.offset() or 0)
                else:
                    self._note_failure(partition, error)
            if self._waiting_count:
                self._error = None
            elif self._error is not None:
                self._tell_error()
        return {partition for partition, waiting in self._waiting.items() if waiting}

    def take(self, partition: Partition, count_max: int) -> list[Message]:
        """The next records of a partition that wait."""
        waiting = self._waiting[partition]
        taken = [waiting.popleft() for _ in range(min(count_max, len(waiting)))]
        self._count_out(taken)
        return taken

    def _count_out(self, messages: Collection[Message]) -> None:
        self._waiting_count -= len(messages)
        self._waiting_bytes -= sum(map(len, messages))

    def has_ended(self, partition: Partition) -> bool:
        """Return whether the partition was read to where it ended, once."""
        return partition in self._ended and not self._waiting[partition]

    def note_positions(self, positions: Mapping[Partition, int]) -> None:
        """Commit positions for tools that look at the lag of a group; nobody reads them here, and none is awaited."""
        if positions and "group.id" in self._spec.properties:
            offsets = [TopicPartition(*partition, offset) for partition, offset in positions.items()]
            self._consumer.commit(offsets=offsets, asynchronous=True)

    def close(self) -> None:
        """Release the client."""
        if self._asked is None or self._asked.done():
            self._consumer.close()
        else:
            # It would wait for the answer to the question that is under way.
            self._asking.submit(self._consumer.close)
        self._asking.shutdown(wait=False)

    # --- errors ---

    def _note_error(self, error: KafkaError) -> None:
        """Called by the client, within its other methods, when brokers cannot be reached."""
        self._error = more_telling(self._error, error)

    def _note_commit(self, error: KafkaError | None, partitions: Sequence[TopicPartition]) -> None:
        """Note the error, if any, of a commit of positions; tools would show no lag, or an old one."""
        errors = [error, *(partition.error for partition in partitions)]
        told = next((each for each in errors if each is not None), None)
        now_s = self._clock.monotonic_s()
        # Without a connection nothing is committed, which is told already.
        if told is None or told.retriable() or now_s - self._told_commit_s < _TOLD_EVERY_S:
            return
        self._told_commit_s = now_s
        mend = (
            "other consumers are in it: give the source a group.id of its own"
            if told.code() in _NOT_ALONE
            else "tools see no lag of it"
        )
        group = self._spec.properties["group.id"]
        log.warning(
            "source %s: positions of group %s are not committed (%s); %s", self._step, group, told.str(), mend
        )

    def _tell_error(self) -> None:
        assert self._error is not None
        if is_refusal(self._error) or self._error.fatal():
            raise self._failure(self._error)
        now_s = self._clock.monotonic_s()
        if now_s - self._told_s >= _TOLD_EVERY_S:
            self._told_s = now_s
            log.warning(
                "source %s: Kafka at %s is awaited: %s", self._step, self._spec.bootstrap, self._error.str()
            )

    def _note_failure(self, partition: Partition, error: KafkaError) -> None:
        name = f"source {self._step}: {partition[0]}[{partition[1]}]"
        if error.code() == KafkaError._AUTO_OFFSET_RESET and _GONE.str() in error.str():
            # It was deleted before its first offset was known.
            error = _GONE
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            mend = ", or correct start" if isinstance(self._spec.start, tuple) else ""
            raise InputError(
                f"{name} does not have the offset at which to go on ({error.str()}): the topic was cut off, "
                'and rows are lost; go on with on_truncation="earliest" or "latest", or start without the checkpoint'
                f"{mend}"
            )
        if error.code() in _WRONG:
            wrong = InputError(f"{name}: {_WRONG[error.code()]} ({error.str()})")
            if error.code() in ABSENT:
                # If this is so for good, the next deployment says it, and the job ends.
                wrong.failure_kind = FailureKind.OUTAGE
            raise wrong
        self._error = error

    def _failure(self, error: KafkaError) -> InputError:
        return unreachable(f"source {self._step}", self._spec.bootstrap, error)
