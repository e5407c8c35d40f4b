"""Sends held batches to the log, as often as it takes: each is there once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from weir.errors import InputError, WeirError
from weir.log import Ticket
from weir.log.errors import LogRejectedError
from weir.log.numbered import NumberedProducer
from weir.operators.log.errors import unreachable
from weir.operators.log.held_batches import HeldBatch
from weir.specs.log import LogSinkSpec

#: Producers that are kept for the next batches; those of earlier deployments are used once.
_KEPT_MAX = 64


class Deliveries:
    """Keeps producers for the next batches. One thread at a time calls it.

    Args:
        spec: of the sink.
        who: the step, for messages.
    """

    def __init__(self, spec: LogSinkSpec, who: str) -> None:
        self._spec, self._who = spec, who
        #: By id and partition.
        self._producers: dict[tuple[int, int], NumberedProducer] = {}

    def send(self, producer_id: int, batches: Iterable[HeldBatch]) -> None:
        """Send batches of one producer, and return when a majority of the brokers has all of them.

        Args:
            producer_id: of all of them.
            batches: in order; what comes before them is there.

        Raises:
            InputError: the log does not answer, which is waited for, or has lost what was written.
        """
        if len(self._producers) > _KEPT_MAX:
            self.close()
        tickets: list[Ticket] = []
        try:
            for batch in batches:
                producer = self._producer(producer_id, batch.partition, batch.sequence)
                tickets.append(producer.send(batch.body))
            for ticket in tickets:
                ticket.result()
        except LogRejectedError as error:
            self.close()
            raise InputError(
                f"{self._who}: topic {self._spec.topic} does not have what this job has written before ({error}): it "
                "was made anew, lost the data of a majority, or has had more producers since than it remembers; start "
                "the job with --start-fresh, or with another topic"
            ) from error
        except WeirError as error:
            self.close()
            raise self._failure(error) from error

    def are_there(self, producer_id: int, last_sequences: Mapping[str, int]) -> bool:
        """Return whether the log has all batches of a producer up to these, by partition.

        Raises:
            InputError: it does not answer, which is waited for.
        """
        try:
            return all(
                self._producer(producer_id, int(partition), sequence).known_sequence() > sequence
                for partition, sequence in last_sequences.items()
            )
        except WeirError as error:
            raise self._failure(error) from error
        finally:
            # They may have begun elsewhere than the next batch.
            self.close()

    def close(self) -> None:
        """Disconnect; it can be used again."""
        for producer in self._producers.values():
            producer.close()
        self._producers.clear()

    def _producer(self, producer_id: int, partition: int, sequence: int) -> NumberedProducer:
        key = producer_id, partition
        producer = self._producers.get(key)
        if producer is None or producer.next_sequence != sequence:
            if producer is not None:
                producer.close()
            self._producers[key] = producer = NumberedProducer(
                self._spec.bootstrap,
                topic=self._spec.topic,
                partition=partition,
                producer_id=producer_id,
                first_sequence=sequence,
            )
        return producer

    def _failure(self, error: WeirError) -> InputError:
        return unreachable(self._who, self._spec.bootstrap, error)
