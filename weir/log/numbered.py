"""A producer whose batches have their numbers already: whoever sends one again, in any process, sends the same one.

This is what delivers exactly once without transactions (``docs/design/0014``). The numbers and the bytes of a batch are
stored before it is sent first, and all who send it use them: the leader takes one, and answers the others.
"""

from __future__ import annotations

from weir import threads
from weir.clock import Clock, SystemClock, monotonic_ms
from weir.log.batches import Body
from weir.log.cluster import Cluster
from weir.log.errors import LogUnknownError
from weir.log.producer_link import ProducerLink
from weir.log.queue import BatchQueue
from weir.log.tickets import Batch, Ticket
from weir.protocol.log.entries import RECORD_OVERHEAD_BYTES
from weir.rpc import log_pb2

_IN_FLIGHT_MAX = 5
_LOOK_S = 0.01


class NumberedProducer:
    """Sends batches to one partition with ``acks="all"``, in the first epoch of a producer. Used by one thread.

    Several processes may send the same batches at the same time. A failure is for good: make another one, and begin
    with any batch whose predecessors are there. Batches that the leader has already cost an answer each.
    """

    def __init__(
        self,
        brokers: str,
        *,
        topic: str,
        partition: int,
        producer_id: int,
        first_sequence: int,
        buffer_bytes: int = 32 << 20,
        delivery_timeout_s: float = 30.0,
        clock: Clock | None = None,
    ) -> None:
        """Find the partition's leader; returns once the topic is known to be there.

        Args:
            brokers: ``host:port`` of a broker, or of several with commas.
            topic: to send to.
            partition: of the topic, from 0.
            producer_id: of the batches; nobody else has it, for any other batch, ever.
            first_sequence: of the first batch that is sent.
            buffer_bytes: of batches without an answer; more makes ``send`` wait.
            delivery_timeout_s: how long a batch is tried.
            clock: source of times.

        Raises:
            ConfigError: there is no such topic or partition.
            ConnectionLostError: no broker has answered within ``delivery_timeout_s``.
            HandshakeError: an address is not of the form host:port.
        """
        self._clock = clock or SystemClock()
        self._timeout_ms = int(delivery_timeout_s * 1000)
        #: Of the next batch.
        self.next_sequence = first_sequence
        self._cluster = Cluster(brokers)
        self._queue = BatchQueue(self._clock, 0.0, buffer_bytes)
        self._link = ProducerLink(
            self._cluster,
            self._queue,
            self._clock,
            topic=topic,
            partition=partition,
            acks=log_pb2.ACKS_ALL,
            compression="none",
            in_flight_max=_IN_FLIGHT_MAX,
            producer_id=producer_id,
            takes_over=False,
            first_sequence=first_sequence,
        )
        self._cluster.await_leader(topic, partition, delivery_timeout_s, self._clock)
        self._link.start()

    def send(self, body: Body) -> Ticket:
        """Send the batch that has the number :attr:`next_sequence`; waits for room.

        Returns:
            The answer, once it comes. Its result is -1 where the batch was there so long that its offset was forgotten.

        Raises:
            LogRejectedError: an earlier batch failed, or this producer is closed.
            LogUnknownError: the same, and nobody knows what became of it.
        """
        batch = Batch(monotonic_ms(self._clock) + self._timeout_ms)
        batch.body, batch.sequence = body, self.next_sequence
        batch.size_bytes = len(body.content) + RECORD_OVERHEAD_BYTES
        self._queue.put(batch)
        self.next_sequence += 1
        return Ticket(batch, 0)

    def known_sequence(self) -> int:
        """Wait for the leader to say before which number all batches are committed; 0: it knows none.

        Raises:
            LogUnknownError: it has not said so in time.
        """
        until_ms = monotonic_ms(self._clock) + self._timeout_ms
        while (known := self._link.known_sequence) is None:
            if monotonic_ms(self._clock) > until_ms:
                raise LogUnknownError(
                    f"the leader has not said what it knows of a producer: {self._link.complaint}"
                )
            threads.sleep(_LOOK_S)
        return known

    def close(self) -> None:
        """Disconnect. What has no answer is given up: it may be written or not."""
        self._queue.fail(LogUnknownError("the producer was closed before the answer came"))
        self._link.stop()
        self._link.join()
        self._cluster.close()
