"""Keys as text and as JSON: what a caller writes, and what an answer shows."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from weir.keys import hashing as weir_keys
from weir.keys.hashing import is_bytes_like
from weir.protocol.queries import QueryError
from weir.questions.json_values import bytes_of, plain

#: Of uint64: where its upper half begins, and where the bytes of its lower half do.
_HALF, _LOWER = 1 << 63, b"\x80"


class KeyText:
    """The key columns of a step."""

    def __init__(self, columns: Sequence[pa.Field]) -> None:
        """``columns``: names and types of the key columns, as they come in."""
        self._columns = list(columns)
        self._names = [column.name for column in columns]
        self._is_string = len(columns) == 1 and columns[0].type in (pa.string(), pa.large_string())

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return self._names

    @property
    def is_ordered(self) -> bool:
        """Return whether the bytes of keys are in the order of their values."""
        return len(self._columns) == 1 and not self._wraps

    @property
    def has_null(self) -> bool:
        """Return whether there may be a key that is null, whose byte lies among those of others."""
        return len(self._columns) == 1 and not _is_binary(self._columns[0].type)

    @property
    def _wraps(self) -> bool:
        """Return whether the bytes of the upper half of the values come before those of the lower half."""
        return bool(pat.is_uint64(_plain_type(self._columns[0].type)))

    def encode(self, text: str) -> bytes:
        """The bytes of a key; of several columns the text is a JSON array.

        Raises:
            QueryError: it is no key of these types.
        """
        if self._is_string:
            # What the cast below would make of it.
            return text.encode()
        parts: Sequence[Any] = [text]
        if len(self._columns) > 1:
            try:
                parts = json.loads(text)
            except ValueError:
                parts = ()
            if not isinstance(parts, list) or len(parts) != len(self._columns):
                raise QueryError(
                    400,
                    f"the key is of the columns {', '.join(self._names)}: write it as a JSON array of as many values",
                )
        arrays = [_array(part, column) for part, column in zip(parts, self._columns, strict=True)]
        return weir_keys.key_bytes(pa.RecordBatch.from_arrays(arrays, names=self._names), self._names).key(0)

    def bounds(self, first: str | None, last: str | None) -> tuple[bytes, bytes | None]:
        """``start <= key < stop`` of the keys of a range, both of whose ends are inclusive; None: it has no such end.

        Raises:
            QueryError: an end is no key of this type, or of several columns: the order of their bytes means nothing; or
                the bytes of the range lie apart.
        """
        if first is None and last is None:
            return b"", None
        if len(self._columns) > 1:
            raise QueryError(
                400,
                f"from and to are for keys of one column, and not of {', '.join(self._names)}: ask for single keys, "
                "or page by page for all",
            )
        if not self._wraps:
            start = b"" if first is None else self.encode(first)
            return start, None if last is None else self.encode(last) + b"\0"
        start = self.encode("0" if first is None else first)
        stop = self.encode(str(2 * _HALF - 1) if last is None else last)
        if (start < _LOWER) != (stop < _LOWER):
            raise QueryError(
                400,
                f"keys of type uint64 from {_HALF} on lie apart from those below: ask for a range up to {_HALF - 1}, "
                f"or from {_HALF} on",
            )
        return start, stop + b"\0"

    def prefix(self, text: str) -> bytes:
        """The bytes that all keys with a prefix begin with.

        Raises:
            QueryError: keys have no prefixes that mean something, or it is no base64.
        """
        if len(self._columns) > 1:
            raise QueryError(400, f"prefix is for keys of one column, and not of {', '.join(self._names)}")
        if not is_bytes_like(self._columns[0].type):
            raise QueryError(400, "prefix is for keys that are text; give from and to")
        return self.encode(text)

    def column(self, keys: Sequence[bytes]) -> pa.Array:
        """Keys as Arrow: of their column's type, or of several columns a struct of them.

        Raises:
            StateError: the bytes are no keys of these types.
        """
        types = [_plain_type(column.type) for column in self._columns]
        arrays = weir_keys.decode_keys(weir_keys.KeyColumn.from_list(keys), types)
        return arrays[0] if len(arrays) == 1 else pa.StructArray.from_arrays(arrays, names=self._names)

    def decode(self, keys: Sequence[bytes]) -> list[Any]:
        """What keys are in JSON: a value, or of several columns an array.

        Raises:
            StateError: the bytes are no keys of these types.
        """
        if not keys:
            return []
        if self._is_string and weir_keys.NULL_KEY not in keys:
            return [key.decode() for key in keys]
        column = weir_keys.KeyColumn.from_list(keys)
        arrays = weir_keys.decode_keys(column, [column.type for column in self._columns])
        rows = zip(*([plain(value) for value in array.to_pylist()] for array in arrays), strict=True)
        return [row[0] if len(row) == 1 else list(row) for row in rows]


def _plain_type(dtype: pa.DataType) -> pa.DataType:
    return dtype.value_type if pat.is_dictionary(dtype) else dtype


def _is_binary(dtype: pa.DataType) -> bool:
    dtype = _plain_type(dtype)
    return bool(pat.is_binary(dtype) or pat.is_large_binary(dtype))


def _array(part: Any, column: pa.Field) -> pa.Array:
    dtype = column.type.value_type if pat.is_dictionary(column.type) else column.type
    try:
        if part is None:
            return pa.array([None], dtype)
        if _is_binary(dtype):
            return pa.array([bytes_of(str(part))], dtype)
        return _cast(part if isinstance(part, str) else json.dumps(part), dtype)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, ArithmeticError) as error:
        raise QueryError(400, f"key {part!r} is no {column.type} ({column.name})") from error


def _cast(text: str, dtype: pa.DataType) -> pa.Array:
    """A value as answers show it, and as Arrow reads it. What would lose digits is refused."""
    if pat.is_timestamp(dtype) and dtype.unit != "ns":
        # Arrow reads as many digits as the unit has, and answers show six.
        return pa.array([text]).cast(pa.timestamp("us", dtype.tz)).cast(dtype)
    if pat.is_time(dtype):
        return pa.array([dt.time.fromisoformat(text)], pa.time64("us")).cast(dtype)
    if pat.is_duration(dtype):
        return pa.array([int(decimal.Decimal(text) * 1_000_000)], pa.duration("us")).cast(dtype)
    return pa.array([text], pa.string()).cast(dtype)
