"""Keys of maps as bytes that sort as the keys do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weir.errors import GraphError
from weir.state.types.declared import BYTES, TEXT, value_type
from weir.state.types.forms import Form
from weir.state.types.value_types import ValueType

_INTEGER = value_type(int)
#: Fewer keys are decoded one by one.
_COLUMNS_MIN = 16


class MapKeyType:
    """Keys of a map as bytes whose order is that of the keys; several types: tuples, by their first part first."""

    def __init__(self, declared: object) -> None:
        """Take one type or a tuple of types.

        Raises:
            GraphError: keys cannot have this type.
        """
        self.is_tuple = isinstance(declared, tuple)
        parts = declared if isinstance(declared, tuple) else (declared,)
        self.types = [value_type(part) for part in parts]
        for part in self.types:
            if not (part in (TEXT, BYTES) or part.cell_kind in ("i", "u", "b")) or not parts:
                raise GraphError(
                    f"{part} cannot be the type of a map's keys; use integers, Boolean, String, Binary, dates and "
                    "times, or a tuple of these"
                )
        if not parts:
            raise GraphError("a map's key has at least one part")
        #: Bytes of each part within a tuple; 0: up to a mark.
        self._widths = [
            (part, 0 if part in (TEXT, BYTES) else 1 if part.cell_kind == "b" else 8) for part in self.types
        ]
        #: Where each part is, in keys of any length; None: before one of a tuple are two of any length.
        self.places = _places([width for _, width in self._widths]) if self.is_tuple else [slice(0, None)]
        #: Of tuples.
        self.parts = [MapKeyType(part) for part in parts] if self.is_tuple else []
        self.form: Form = (
            {"tuple": [part.form for part in self.types]} if self.is_tuple else self.types[0].form
        )

    def encode(self, key: Any) -> bytes:
        """The bytes of a key.

        Raises:
            TypeError, ValueError: it is none of this type.
        """
        if not self.is_tuple:
            return _part_bytes(self.types[0], key)
        if not isinstance(key, tuple) or len(key) != len(self.types):
            raise TypeError(f"{key!r} is not a tuple of {len(self.types)} parts")
        return b"".join(
            _ended(part, _part_bytes(part, item)) for part, item in zip(self.types, key, strict=True)
        )

    def encode_many(self, keys: Sequence[Any]) -> list[bytes]:
        """The bytes of each key.

        Raises:
            TypeError, ValueError: one is none of this type.
        """
        part = self.types[0]
        if self.is_tuple or part.cell_kind != "i" or any(type(key) is not int for key in keys):
            return [self.encode(key) for key in keys]
        plain = part.to_plain
        return [(plain(key) + 2**63).to_bytes(8, "big") for key in keys]

    def encode_prefix(self, prefix: Any) -> bytes:
        """What the bytes of all keys begin with that begin with a text, bytes or, of tuples, their first parts.

        Raises:
            TypeError, ValueError: keys have no beginnings, or this is none.
        """
        if not self.is_tuple:
            if self.types[0] not in (TEXT, BYTES):
                raise TypeError(
                    f"keys of type {self.types[0]} have no prefixes; those of text, bytes and tuples have"
                )
            return _part_bytes(self.types[0], prefix)
        if not isinstance(prefix, tuple) or len(prefix) > len(self.types):
            raise TypeError(f"{prefix!r} is not a tuple of {len(self.types)} parts at most")
        return b"".join(
            _ended(part, _part_bytes(part, item)) for part, item in zip(self.types, prefix, strict=False)
        )

    def decode(self, data: bytes) -> Any:
        """The key of these bytes."""
        if not self.is_tuple:
            return _part_of(self.types[0], data)
        # Of a range each item comes here: no call for each part that need not be.
        items: list[Any] = []
        at = 0
        for part, width in self._widths:
            if not width:
                # A zero within the text has 255 behind it.
                stop = data.index(b"\x00\x01", at)
                items.append(_part_of(part, data[at:stop].replace(b"\x00\xff", b"\x00")))
                at = stop + 2
            elif part is _INTEGER:
                items.append(int.from_bytes(data[at : at + 8], "big") - 2**63)
                at += 8
            else:
                items.append(_part_of(part, data[at : at + width]))
                at += width
        return tuple(items)

    def decode_many(self, found: Sequence[bytes]) -> list[Any]:
        """The keys of these bytes, in their order; those of many tuples part by part."""
        if not self.is_tuple or self.places is None or len(found) < _COLUMNS_MIN:
            return list(map(self.decode, found))
        columns = [
            _column_of(part, width, [data[place] for data in found])
            for (part, width), place in zip(self._widths, self.places, strict=True)
        ]
        return list(zip(*columns, strict=True))


def _places(widths: Sequence[int]) -> list[slice] | None:
    """Where parts of these widths are; 0: of any length, with a mark of two bytes after it."""
    if widths.count(0) > 1:
        return None
    marked = widths.index(0) if 0 in widths else len(widths)
    places = [slice(sum(widths[:at]), sum(widths[: at + 1])) for at in range(marked)]
    for at in range(marked, len(widths)):
        after = sum(widths[at + 1 :])
        begin = sum(widths[:marked]) if at == marked else -after - widths[at]
        places.append(slice(begin, -after - 2 if at == marked else -after or None))
    return places


def _column_of(part: ValueType, width: int, cut: list[bytes]) -> list[Any]:
    """Decode one part of several keys; ``width`` as in :func:`_places`."""
    joined = b"".join(cut)
    if part is _INTEGER:
        raw = np.frombuffer(joined, ">u8").astype(np.uint64) ^ np.uint64(2**63)
        numbers: list[Any] = raw.view(np.int64).tolist()
        return numbers
    if not width and b"\x00" in joined:
        cut = [data.replace(b"\x00\xff", b"\x00") for data in cut]
    return [data.decode() for data in cut] if part is TEXT else [_part_of(part, data) for data in cut]


def _part_bytes(part: ValueType, value: Any) -> bytes:
    plain = part.to_plain(value)
    if part is TEXT:
        return str(plain).encode()
    if part is BYTES:
        return bytes(value)
    if part.cell_kind == "b":
        return b"\x01" if plain else b"\x00"
    biased: int = plain if part.cell_kind == "u" else plain + 2**63
    return biased.to_bytes(8, "big")


def _part_of(part: ValueType, data: bytes) -> Any:
    if part is TEXT:
        return data.decode()
    if part is BYTES:
        return data
    if part.cell_kind == "b":
        return data == b"\x01"
    number = int.from_bytes(data, "big")
    return part.from_plain(number if part.cell_kind == "u" else number - 2**63)


def _ended(part: ValueType, data: bytes) -> bytes:
    """Text within a tuple ends with a mark that sorts before everything that may follow in a longer text."""
    return data.replace(b"\x00", b"\x00\xff") + b"\x00\x01" if part in (TEXT, BYTES) else data
