"""Ids of topics: one that was deleted and made anew has another id, and offsets of the old one mean nothing in it.

Where the new topic is shorter, the client says so. Where it has grown past the offset, only the id shows.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from weir.errors import FailureKind, InputError
from weir.operators.kafka.client_errors import unreachable
from weir.operators.kafka.client_log import client_log
from weir.specs.kafka import KafkaSpec

log = logging.getLogger(__name__)

#: Properties that this client has, too; of others it would warn.
_CONNECTION = ("security.", "sasl.", "ssl.", "socket.", "broker.address.", "client.", "enable.ssl")
_BITS = (1 << 64) - 1
_AWAY = (
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._TRANSPORT,
    KafkaError._RESOLVE,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError.REQUEST_TIMED_OUT,
)


class TopicIds:
    """Asks the brokers. One thread at a time calls it.

    Args:
        spec: of the source.
        who: the source, for messages.
    """

    def __init__(self, spec: KafkaSpec, who: str) -> None:
        self._spec, self._who = spec, who
        self._client: AdminClient | None = None
        #: As 32 hexadecimal digits, by topic.
        self.known: Mapping[str, str] = {}

    def check(self, topics: Collection[str], timeout_s: float) -> None:
        """Note ids of topics that have none yet.

        Raises:
            InputError: no broker answers; or a topic was made anew, with which the next deployment deals.
        """
        found = self._ask(topics, timeout_s)
        # One that was made anew keeps its old id: a checkpoint may still be made, with offsets of the old topic.
        self.known = {**found, **self.known}
        for topic in self._others(found, self.known):
            remade = InputError(f"{self._who}: topic {topic} was deleted and made anew while it was read")
            remade.failure_kind = FailureKind.OUTAGE
            raise remade

    def made_anew(self, ids: Mapping[str, str], timeout_s: float) -> list[str]:
        """Topics that have other ids than these, of a checkpoint; from now on they have theirs.

        Raises:
            InputError: there is one, and the source is to fail then; or no broker answers.
        """
        found = self._ask(list(ids), timeout_s)
        self.known = {**ids, **found}
        remade = self._others(found, ids)
        for topic in remade:
            if self._spec.on_truncation == "fail":
                raise InputError(
                    f"{self._who}: topic {topic} was deleted and made anew since the checkpoint, and rows may be lost; "
                    'go on with on_truncation="earliest" or "latest", or start without the checkpoint'
                )
            log.warning("%s: topic %s was made anew: %s", self._who, topic, self._spec.on_truncation)
        return remade

    @staticmethod
    def _others(found: Mapping[str, str], known: Mapping[str, str]) -> list[str]:
        return sorted(topic for topic, name in found.items() if known.get(topic, name) != name)

    def _ask(self, topics: Collection[str], timeout_s: float) -> dict[str, str]:
        if not topics:
            return {}
        if self._client is None:
            properties = self._spec.properties.items()
            settings = {name: value for name, value in properties if name.startswith(_CONNECTION)}
            self._client = AdminClient(
                {**settings, "bootstrap.servers": self._spec.bootstrap}, logger=client_log
            )
        asked = self._client.describe_topics(TopicCollection(list(topics)), request_timeout=timeout_s)
        found = {}
        for topic, answer in asked.items():
            try:
                number = answer.result().topic_id
            except KafkaException as error:
                if error.args[0].code() in _AWAY:
                    raise unreachable(self._who, self._spec.bootstrap, error.args[0]) from None
                # It is gone, or may not be described: whoever reads it says so.
                log.debug("%s: no id of topic %s: %s", self._who, topic, error)
                continue
            high, low = number.get_most_significant_bits(), number.get_least_significant_bits()
            # Old brokers have no ids.
            if high or low:
                found[topic] = f"{high & _BITS:016x}{low & _BITS:016x}"
        return found
