"""What the scanner is to find in a line: the tree of wanted keys, and its tables of entries and objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.types as pa_types

from weir.operators.sources.json.json_scan import (
    KIND_BOOL,
    KIND_DATE,
    KIND_DECIMAL,
    KIND_FLOAT,
    KIND_INT,
    KIND_OBJECT,
    KIND_RAW,
    KIND_STRING,
    KIND_TIME,
    KIND_UNSIGNED,
    LIST_END,
    LISTED_ENTRIES_MAX,
    OBJECT_END,
    OBJECT_ENDS,
    OBJECT_FIRST,
    OBJECT_MASK,
    OBJECT_SLOTS,
    OBJECT_STOP,
    WORD_BITS,
)
from weir.operators.sources.json.json_values import integer_range
from weir.rows.nested_paths import Path

#: Values of one call: of many columns it reads fewer lines.
CELLS_MAX = 1 << 19
_KINDS = {
    pa.float32(): KIND_FLOAT,
    pa.float64(): KIND_FLOAT,
    pa.bool_(): KIND_BOOL,
    pa.date32(): KIND_DATE,
    pa.string(): KIND_STRING,
    pa.large_string(): KIND_STRING,
    pa.binary(): KIND_STRING,
    pa.large_binary(): KIND_STRING,
}
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
#: Digits of a decimal that is scanned.
_DECIMAL_DIGITS_MAX = 18


@dataclass
class Wanted:
    """A key that is wanted of the line's object or of one within it, or a place that is wanted of a list."""

    key: str | int
    kind: int
    type: pa.DataType | None
    nullable: bool
    children: dict[str | int, Wanted] = field(default_factory=dict)
    #: Its place in the table of entries.
    entry: int = -1


class UnscannableError(Exception):
    """The scanner cannot read such a schema."""


def limits_of(data_type: pa.DataType | None) -> tuple[int, int]:
    """What the scanner has to know about a type, in ``ENTRY_LOW`` and ``ENTRY_HIGH``."""
    if data_type is None:
        return 0, 0
    if pa_types.is_timestamp(data_type):
        return _PER_SECOND[data_type.unit], 0
    if pa_types.is_decimal(data_type):
        return data_type.scale, data_type.precision
    return integer_range(data_type) or (0, 0)


def _kind(data_type: pa.DataType) -> int:
    """Return what the scanner reads values of a type as."""
    if data_type == pa.uint64():
        return KIND_UNSIGNED
    if integer_range(data_type) is not None:
        return KIND_INT
    if pa_types.is_timestamp(data_type):
        return KIND_TIME
    if (
        pa_types.is_decimal128(data_type)
        and data_type.precision <= _DECIMAL_DIGITS_MAX
        and data_type.scale >= 0
    ):
        return KIND_DECIMAL
    return _KINDS.get(data_type, KIND_RAW)


def want(objects: dict[str | int, Wanted], path: Path, data_type: pa.DataType, *, nullable: bool) -> Wanted:
    """Note a wanted value below an object; the same key may be wanted twice if both agree."""
    key = path[0]
    if isinstance(key, str) and (not key.isprintable() or '"' in key or "\\" in key):
        raise UnscannableError
    if len(path) > 1:
        inner = objects.setdefault(key, Wanted(key, KIND_OBJECT, None, nullable=True))
        if inner.kind != KIND_OBJECT:
            raise UnscannableError
        return want(inner.children, path[1:], data_type, nullable=nullable)
    if key in objects:
        # A column twice, or an object both whole and in parts.
        raise UnscannableError
    wanted = Wanted(key, _kind(data_type), data_type, nullable)
    if pa_types.is_struct(data_type) and data_type.num_fields:
        wanted.kind = KIND_OBJECT
        for item in data_type:
            want(wanted.children, (item.name,), item.type, nullable=True)
    objects[key] = wanted
    return wanted


def numbered(root: dict[str | int, Wanted]) -> tuple[list[Wanted], np.ndarray]:
    """Return all entries, those of an object together; and the table of objects, int64, shape (objects, 8).

    Objects are numbered in the order of their entries, from 1 on: 0 is the line.
    """
    entries: list[Wanted] = []
    rows: list[list[int]] = []
    waiting: list[tuple[dict[str | int, Wanted], int, int]] = [(root, 0, -1)]
    while waiting:
        children, parent, own_entry = waiting.pop(0)
        number = len(rows)
        is_list = any(isinstance(key, int) for key in children)
        end = LIST_END if is_list else OBJECT_END
        rows.append([len(entries), len(entries) + len(children), parent, own_entry, end, 0, -1, 0])
        # The scanner passes a list once, so its places are in order.
        for wanted in sorted(children.values(), key=_place) if is_list else children.values():
            wanted.entry = len(entries)
            entries.append(wanted)
            if wanted.kind == KIND_OBJECT:
                waiting.append((wanted.children, number, wanted.entry))
    return entries, np.array(rows, dtype=np.int64)


def _place(wanted: Wanted) -> int:
    return int(wanted.key)


def rows_at_a_time(root: dict[str | int, Wanted], rows_max: int) -> int:
    """Lines that are scanned at a time: of more columns than one set holds fewer, so that their cells stay small."""
    count = len(numbered(root)[0])
    return rows_max if count <= WORD_BITS else max(1, min(rows_max, CELLS_MAX // count))


def give_slots(objects: np.ndarray) -> int:
    """Give the objects with many entries room for their hash tables; returns the length of all."""
    total = 0
    for row in objects:
        count = int(row[OBJECT_STOP] - row[OBJECT_FIRST])
        if count > LISTED_ENTRIES_MAX and row[OBJECT_ENDS] == OBJECT_END:
            length = 1 << (2 * count).bit_length()
            row[OBJECT_SLOTS], row[OBJECT_MASK] = total, length - 1
            total += length
    return total


def sets_of(entries: Sequence[Wanted]) -> np.ndarray:
    """Sets of entries, as ``scan_lines`` takes them."""
    words = max(1, -(-len(entries) // WORD_BITS))
    sets = np.zeros((4, words), dtype=np.uint64)
    for wanted in entries:
        bit = np.uint64(1 << wanted.entry % WORD_BITS)
        sets[3, wanted.entry // WORD_BITS] |= bit
        if not wanted.nullable:
            sets[2, wanted.entry // WORD_BITS] |= bit
    return sets.view(np.int64).reshape(-1)
