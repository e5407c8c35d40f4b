"""A producer of the client library, with errors as ours, and a bounded queue."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer
from tenacity import Retrying, retry_if_exception, stop_after_delay

from weir.clock import Clock, SystemClock
from weir.errors import FailureKind, InputError
from weir.operators.kafka.bounded_calls import BoundedCall, CallLostError, Waiting
from weir.operators.kafka.client_errors import is_refusal, is_wrong_password, more_telling, unreachable
from weir.operators.kafka.client_log import client_log
from weir.operators.kafka.marks import GROUPS, Mark, Marks
from weir.operators.kafka.values import record_values
from weir.specs.kafka import KafkaSinkSpec

if TYPE_CHECKING:
    from weir.operators.kafka.coding import Encode

log = logging.getLogger(__name__)

_ANSWER_TIMEOUT_S = 30.0
#: Between two looks whether to say that an answer is waited for.
_LOOK_S = 1.0
#: Of one attempt at ending a transaction, and of all: a new deployment, whose producer looks for its coordinator anew,
#: helps sooner than one that has lost it.
_ATTEMPT_TIMEOUT_S, _ATTEMPTS_S = 10.0, 20.0
#: The next deployment ends what is left open, so that a restart need not wait for brokers that are away.
_ABORT_TIMEOUT_S = 3.0
#: Records that the client holds until a broker has them.
_QUEUED_KIB_MAX = 64 << 10
#: What the client waits for before it sends a request again, at least (it takes up to 20 % off). It does so by itself
#: where a connection broke, and tells nobody. Longer than its own 100 ms, so that few answers count as lost: see
#: :attr:`RecordProducer.is_worn`. It is never more than the client's other setting, of which this is the default.
_BACKOFF_MS, _BACKOFF_SHARE = 1_000, 0.75
#: Keys go where Kafka's own producer puts them.
_DEFAULTS = {
    "linger.ms": 5,
    "compression.type": "lz4",
    "partitioner": "murmur2_random",
    "retry.backoff.ms": _BACKOFF_MS,
}

#: What calls and records end with once an error was fatal.
_AFTER_FATAL = (KafkaError._FATAL, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


def _again(ask: Callable[[], None]) -> None:
    """Ask again when the client says that this helps; it waits itself."""
    for attempt in Retrying(
        retry=retry_if_exception(lambda e: isinstance(e, KafkaException) and e.args[0].retriable()),
        stop=stop_after_delay(_ATTEMPTS_S),
        reraise=True,
    ):
        with attempt:
            ask()


def awaiting_answer(spec: KafkaSinkSpec, step: str, clock: Clock | None = None) -> Waiting:
    """Tells that no broker has answered a client that begins; clients that begin together share it."""
    who = f"sink {step}: Kafka at {spec.bootstrap}"
    return Waiting(who, "no answer; check the addresses, and that it runs", clock or SystemClock())


class _ClientErrors:
    """What a client called back with, within its other methods.

    It refers to no client: one that refers to itself by its callbacks would live, with its threads and connections,
    until garbage is collected.
    """

    def __init__(self) -> None:
        self.failure: KafkaError | None = None
        #: The brokers do not let this user in, or not by these certificates; the client goes on to try.
        self.refusal: KafkaError | None = None
        #: A connection to a broker broke, or was not made; and why, the latest time.
        self.has_missed_broker = False
        self.latest: KafkaError | None = None

    def note_delivery(self, error: KafkaError | None, _: object) -> None:
        """Note the first record that could not be sent."""
        if error is not None and self.failure is None:
            self.failure = error

    def note_error(self, error: KafkaError | None) -> None:
        """Note that a broker cannot be reached, or refuses."""
        self.has_missed_broker = True
        if error is not None and error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.latest = more_telling(self.latest, error)
        if error is not None and is_refusal(error):
            self.refusal = error


class RecordProducer:
    """Produces the rows of one subtask. One thread at a time calls it.

    Args:
        spec: of the sink.
        step: its name, for messages.
        transactional_id: what its transactions are of; "": it has none. A new producer of an id ends the transaction
            that an older one has left open, and whatever the older one does from now on fails.
        clock: for time-outs.
        waiting: tells that the brokers do not answer yet; by default its own does.

    Raises:
        InputError: the client refuses a property, or no broker answers.
    """

    def __init__(
        self,
        spec: KafkaSinkSpec,
        step: str,
        transactional_id: str = "",
        clock: Clock | None = None,
        waiting: Waiting | None = None,
    ) -> None:
        self._spec, self._step = spec, step
        self._clock = clock or SystemClock()
        #: For messages.
        self._who = f"sink {step}: Kafka at {spec.bootstrap}"
        self._errors = errors = _ClientErrors()
        #: Which group its marks go to.
        self._group_number = 0
        #: A request whose answer was lost may come to a broker later.
        self._may_have_asked_twice = False
        names = ("retry.backoff.ms", "retry.backoff.max.ms")
        backoff_ms = min(float(spec.properties.get(name, _BACKOFF_MS)) for name in names)
        self._quick_s = backoff_ms * _BACKOFF_SHARE / 1_000
        self._encode: Encode | None = None
        if spec.coding is not None:
            # Loaded only where it is needed.
            from weir.operators.kafka.coding import ValueEncoder

            self._encode = ValueEncoder(spec.coding, spec.topic, f"sink {step}").encode
        settings: dict[str, Any] = {
            **_DEFAULTS,
            "queue.buffering.max.kbytes": _QUEUED_KIB_MAX,
            **spec.properties,
            "bootstrap.servers": spec.bootstrap,
            "enable.idempotence": True,
            # A call for each record would take as long as sending it.
            "delivery.report.only.error": True,
            "on_delivery": errors.note_delivery,
            "error_cb": errors.note_error,
        }
        if transactional_id:
            settings["transactional.id"] = transactional_id
            settings["transaction.timeout.ms"] = spec.transaction_timeout_ms
        try:
            self._producer = Producer(settings, logger=client_log)
            if transactional_id:
                self._init_transactions(waiting or awaiting_answer(spec, step, self._clock))
        except KafkaException as error:
            raise self._refused(error.args[0]) from None

    @property
    def is_worn(self) -> bool:
        """Return whether a new client must begin the next transaction; asked between transactions.

        There is no group left that is new to this one. Or an answer about the end of a transaction, or about its mark,
        may have been lost, and the client asked again: the first request may still be under way, and brokers would take
        it for one about the next transaction, which has the same id and epoch. A new client has a higher epoch.
        The client does not say that it asked again, but it waits before it does. So every slow answer counts as lost.
        """
        return self._may_have_asked_twice or self._group_number == GROUPS - 1

    def _init_transactions(self, waiting: Waiting) -> None:
        """Fence earlier producers; the first thing for which brokers have to be there."""
        ends_s = self._clock.monotonic_s() + _ANSWER_TIMEOUT_S
        while True:
            try:
                return self._producer.init_transactions(_LOOK_S)
            except KafkaException as error:
                # What timed out goes on, and the next call waits for it. The code is what its last attempt met: often
                # that the brokers still end the transaction of an earlier producer.
                told = error.args[0]
                if not told.retriable() or self._clock.monotonic_s() >= ends_s:
                    if told.code() == KafkaError._TIMED_OUT:
                        # The connections know why: one side speaks TLS, and the other does not.
                        told = self._errors.latest or told
                    raise KafkaException(self._errors.refusal or told) from None
            # Errors of connections are told now.
            self._poll(0)
            self._check()
            waiting.tell_if_due()

    def begin(self) -> None:
        """Begin a transaction."""
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            raise self._refused(error.args[0]) from None

    def produce(self, batch: pa.RecordBatch) -> None:
        """Hand rows to the client, which sends them soon; waits while its queue is full.

        Raises:
            InputError: earlier ones could not be sent.
        """
        records = record_values(batch, self._spec, self._encode)
        produce, topic = self._producer.produce, self._spec.topic
        waiting: Waiting | None = None
        for number, value in enumerate(records.values):
            extra: dict[str, Any] = {}
            if records.headers is not None:
                extra["headers"] = records.headers[number]
            if records.partitions is not None:
                extra["partition"] = records.partitions[number]
            key = None if records.keys is None else records.keys[number]
            while True:
                try:
                    produce(topic, value, key, **extra)
                    break
                except BufferError:
                    self._poll(0.1)
                    self._check()
                    waiting = waiting or Waiting(self._who, "room for more records is awaited", self._clock)
                    waiting.tell_if_due()
                except KafkaException as error:
                    raise self._refused(error.args[0]) from None
        self._poll(0)
        self._check()

    def flush(self) -> None:
        """Return when the brokers have everything.

        Raises:
            InputError: something could not be sent.
        """
        waiting = Waiting(self._who, "records are awaited that they have not taken", self._clock)
        try:
            # The client gives each record up after its own time-out, so this ends.
            while self._serve(lambda: self._producer.flush(1.0)):
                self._check()
                waiting.tell_if_due()
        except KafkaException as error:
            raise self._refused(error.args[0]) from None
        self._check()

    def commit(self, mark: Mark, marks: Marks) -> None:
        """Commit the transaction, and with it its mark.

        Args:
            mark: of the transaction.
            marks: of its group.

        Raises:
            InputError: it is not known to be committed. The next deployment, with other clients, commits it.
        """
        # Errors of connections are told now.
        self._poll(0)
        if self._errors.has_missed_broker:
            # This client may take that one for the coordinator of the group, and then waits for it without end.
            self._errors.has_missed_broker = False
            self._group_number = min(self._group_number + 1, GROUPS - 1)
            marks.await_coordinator(self._group_number)
        number = self._group_number
        group = marks.group_metadata(number)
        has_mark = False

        def end(call: BoundedCall) -> None:
            nonlocal has_mark
            self._ask(
                lambda: self._producer.send_offsets_to_transaction([mark.offset()], group, _ATTEMPT_TIMEOUT_S)
            )
            has_mark = True
            if not call.is_given_up:
                self._ask(lambda: self._producer.commit_transaction(_ATTEMPT_TIMEOUT_S))

        waiting = Waiting(self._who, "the end of a transaction is awaited", self._clock)
        try:
            BoundedCall(end, self._clock).wait(
                _ATTEMPTS_S, waiting, lambda: not has_mark and marks.coordinator_answers(number)
            )
        except CallLostError as error:
            lost = InputError(
                f"{self._who}: a transaction did not end ({error}); the job begins again and ends it, with a client "
                "that looks for the brokers anew"
            )
            lost.failure_kind = FailureKind.OUTAGE
            raise lost from None
        except KafkaException as error:
            raise self._refused(error.args[0]) from None

    def abort(self) -> None:
        """Drop the open transaction; an error is told, as it ends by itself later."""
        try:
            self._producer.purge()
            self._producer.abort_transaction(_ABORT_TIMEOUT_S)
        except KafkaException as error:
            log.warning(
                "sink %s: a transaction stays until it times out: %s", self._step, error.args[0].str()
            )

    def _ask(self, ask: Callable[[], None]) -> None:
        """Ask again and again, as :func:`_again` does; notes whether the client may have sent a request twice."""
        began_s = self._clock.monotonic_s()
        _again(ask)
        if self._clock.monotonic_s() - began_s >= self._quick_s:
            self._may_have_asked_twice = True

    def _serve(self, call: Callable[[], int]) -> int:
        """A call of the client that also calls back.

        Raises:
            KafkaException: of an error that is fatal: the client (2.16) raises what is no exception then, or calls back
                once more before it does, which Python takes for an error of its own.
        """
        try:
            return call()
        except SystemError:
            if self._errors.failure is None:
                raise
            error: Any = self._errors.failure
        except BaseException:
            raise
        except:  # noqa: E722
            # Nothing else takes it, and nothing may be raised while it is handled.
            error = sys.exc_info()[1]
        raise KafkaException(error)

    def _poll(self, timeout_s: float) -> None:
        """Let the client call back."""
        try:
            self._serve(lambda: self._producer.poll(timeout_s))
        except KafkaException as error:
            raise self._refused(error.args[0]) from None

    def _check(self) -> None:
        if self._errors.refusal is not None and is_wrong_password(self._errors.refusal):
            raise self._refused(self._errors.refusal)
        if self._errors.failure is not None:
            raise self._refused(self._errors.failure)

    def _fatal_error(self, error: KafkaError) -> KafkaError:
        """What an error comes of that says only that the client is of no more use, or has dropped a record for that."""
        if error.code() not in _AFTER_FATAL:
            return error
        try:
            # After a fatal error it has no other effect than to say which one that was.
            self._producer.begin_transaction()
        except KafkaException as refused:
            if refused.args[0].fatal():
                error = refused.args[0]
        return error

    def _refused(self, error: KafkaError) -> InputError:
        error = self._fatal_error(error)
        if error.code() in (
            KafkaError._FENCED,
            KafkaError.PRODUCER_FENCED,
            KafkaError.INVALID_PRODUCER_EPOCH,
        ):
            fenced = InputError(
                f"sink {self._step}: another process writes under the same transactional id, or a transaction was open "
                f"for more than transaction_timeout_ms ({self._spec.transaction_timeout_ms} ms), which must be longer "
                "than the time from one checkpoint to the next; its rows come again"
            )
            fenced.failure_kind = FailureKind.OUTAGE
            return fenced
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return InputError(
                f"sink {self._step}: a record is larger than the topic takes ({error.str()}); raise message.max.bytes "
                "in properties, and max.message.bytes of the topic"
            )
        return unreachable(f"sink {self._step}", self._spec.bootstrap, error)
