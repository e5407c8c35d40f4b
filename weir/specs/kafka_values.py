"""What the values of Kafka records are, where they are no JSON objects: Avro and Protobuf."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from weir.specs.kafka_properties import ClientProperties


@dataclass(frozen=True)
class RegistrySpec:
    """A schema registry, as Confluent's, Karapace and Apicurio serve it."""

    url: str
    #: ``basic.auth.user.info``, if it asks for a user; no plan or log shows it.
    properties: ClientProperties = field(default_factory=ClientProperties)


class Descriptors:
    """A serialised ``FileDescriptorSet``: what ``protoc --descriptor_set_out`` writes."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Descriptors) and other.data == self.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return f"Descriptors({hashlib.sha256(self.data).hexdigest()[:12] if self.data else ''})"


@dataclass(frozen=True)
class AvroSpec:
    """Values that are Avro records: alone, or after the number of the schema in a registry."""

    #: JSON of the schema; "": the registry has it.
    schema: str = ""
    registry: RegistrySpec | None = None
    #: Under which a sink registers its schema; "": that of the topic's values.
    subject: str = ""


@dataclass(frozen=True)
class ProtobufSpec:
    """Values that are Protobuf messages: alone, or after the number of the schema in a registry."""

    #: Full name of the message; "": the registry says which.
    message: str = ""
    descriptors: Descriptors = field(default_factory=Descriptors)
    registry: RegistrySpec | None = None
    #: As for Avro.
    subject: str = ""


ValueSpec = AvroSpec | ProtobufSpec
