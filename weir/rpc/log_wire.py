"""Messages of the replicated log that hold megabytes: written and read by hand, so that these are copied once each.

The bytes are those of ``proto/log.proto``, where field 15 of such a message is the large one and comes last; protobuf
itself copies it three times on each side. A test compares both.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from weir.errors import HandshakeError

#: Full names of the calls.
PRODUCE = "/weir.log.v1.LogBroker/Produce"
REPLICATE = "/weir.log.v1.LogBroker/Replicate"
LOG_SERVICE = "weir.log.v1.LogBroker"
#: A message of the log has at most so many bytes: a batch and what is around it.
LOG_MESSAGE_BYTES_MAX = 16 << 20

# Field 2, fixed32.
_CRC = struct.Struct("<BI")
_CRC_TAG, _BLOB_TAG = 2 << 3 | 5, 15 << 3 | 2
#: Kinds of fields, and how long those of a fixed length are.
_VARINT, _BYTES, _FIXED_BYTES = 0, 2, {1: 8, 5: 4}
#: A number has at most ten bytes, of seven bits each.
_VARINT_BITS_MAX = 70


def varint(number: int) -> bytes:
    """Return a number as protobuf writes it."""
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def with_blob(head: bytes, parts: Sequence[bytes]) -> bytes:
    """Return a message: ``head`` is that of its other fields, ``parts`` make up field 15."""
    return b"".join((head, bytes((_BLOB_TAG,)), varint(sum(map(len, parts))), *parts))


def produce_request(batch_crc: int, header: bytes, body: bytes) -> bytes:
    """Return a ``ProduceRequest`` with a batch, whose parts are given."""
    return with_blob(_CRC.pack(_CRC_TAG, batch_crc), (header, body))


def split_blob(message: bytes) -> tuple[bytes, bytes]:
    """Return the message of the other fields, and field 15; b"" if it is absent.

    Raises:
        HandshakeError: these bytes are no such message.
    """
    position = 0
    try:
        while position < len(message):
            start = position
            tag, position = _read_varint(message, position)
            kind = tag & 7
            if kind == _VARINT:
                _, position = _read_varint(message, position)
            elif kind == _BYTES:
                size, position = _read_varint(message, position)
                if tag == _BLOB_TAG:
                    if position + size != len(message):
                        break
                    return message[:start], message[position:]
                position += size
            else:
                position += _FIXED_BYTES[kind]
        else:
            if position == len(message):
                return message, b""
    except (IndexError, KeyError):
        pass
    raise HandshakeError("a message of the log has another form: run the same Weir version everywhere")


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while shift < _VARINT_BITS_MAX:
        byte = message[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
    raise IndexError("a number of more than 64 bits")


def as_it_is(message: bytes) -> bytes:
    """Serialise, or read, what is bytes already."""
    return message
