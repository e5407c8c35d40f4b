"""Records of Kafka in and out. The client library, confluent-kafka, is loaded only where a job uses it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from weir.errors import InputError

if TYPE_CHECKING:
    from weir.author.operator import Operator, SourceReader
    from weir.specs.kafka import KafkaRangeSpec, KafkaSinkSpec, KafkaSpec


def create_kafka_reader(spec: KafkaSpec) -> SourceReader:
    """The reader of a Kafka source; for ``weir.operators.registry``.

    Raises:
        InputError: the client library is not installed.
    """
    reader: SourceReader = _load("reader").KafkaReader(spec)
    return reader


def create_range_reader(spec: KafkaRangeSpec) -> SourceReader:
    """The reader of a range of a partition; for ``weir.operators.registry``.

    Raises:
        InputError: the client library is not installed.
    """
    reader: SourceReader = _load("range_reader").RangeReader(spec)
    return reader


def create_kafka_sink(spec: KafkaSinkSpec) -> Operator:
    """The sink that the spec describes; for ``weir.operators.registry``.

    Raises:
        InputError: the client library is not installed.
    """
    exactly_once = spec.delivery == "exactly_once"
    sink: Operator = (
        _load("sink").KafkaSink(spec) if exactly_once else _load("append_sink").KafkaAppendSink(spec)
    )
    return sink


def _load(module: str) -> Any:
    try:
        return import_module(f"weir.operators.kafka.{module}")
    except ModuleNotFoundError as error:
        if error.name not in ("confluent_kafka", "fastavro"):
            raise
        raise InputError("Kafka's client library is not installed; run: pip install 'weir[kafka]'") from error
