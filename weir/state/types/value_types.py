"""What the values of a type are as bytes; the table is in ``weir.state.types``."""

from __future__ import annotations

import datetime as dt
import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from operator import itemgetter
from typing import Any

import orjson
import polars as pl
from typing_extensions import override

from weir.errors import StateMismatchError
from weir.state.types.forms import Form, describe

#: Types whose values JSON has as Polars has them.
_PLAIN_DTYPES = (
    pl.Int8,
    pl.Int16,
    pl.Int32,
    pl.Int64,
    pl.UInt8,
    pl.UInt16,
    pl.UInt32,
    pl.UInt64,
    pl.Boolean,
    pl.String,
)
#: First byte of a value in JSON.
VERSION = b"\x01"
#: First byte of a value that is bytes.
_RAW = b"\x02"
#: That byte, and what comes after it; of objects of C, because whole ranges of maps are decoded.
_FIRST_BYTE, _AFTER_IT = itemgetter(slice(0, 1)), itemgetter(slice(1, None))
#: First byte of the values of a state with a TTL (``weir.state.tables.expiry``): a time follows, then the value.
STAMPED = b"\x80"
#: Bytes before the value then.
STAMP_BYTES = 9


def listed(values: Any) -> list[Any]:
    """A column in any form (a series, an array of numpy or Arrow, a list) as a list of Python values."""
    for method in ("to_pylist", "to_list", "tolist"):
        if hasattr(values, method):
            found: list[Any] = getattr(values, method)()
            return found
    return list(values)


class ValueType(ABC):
    """A type of values. ``None`` is no value of any type: only parts of lists and structs may be null."""

    #: See :data:`Form`.
    form: Form
    #: The values cannot change, so nobody needs to look whether they did.
    is_immutable = True
    #: "i" (int64), "u" (uint64), "f" (float64) or "b" (bool) if a value fits in 8 bytes, else "".
    cell_kind = ""
    #: The Polars type of a column of values; None: there is none.
    dtype: pl.DataType | None = None

    @abstractmethod
    def to_plain(self, value: Any) -> Any:
        """What JSON (or a cell) holds of a value.

        Raises:
            TypeError: the value is of another type.
            ValueError: it does not fit.
        """

    @abstractmethod
    def from_plain(self, plain: Any) -> Any:
        """The value again."""

    def encode(self, value: Any) -> bytes:
        """The bytes of a value.

        Raises:
            TypeError, ValueError: it is none of this type.
        """
        plain = self.to_plain(value)
        try:
            return VERSION + orjson.dumps(plain)
        except TypeError as error:
            raise ValueError(f"{value!r} cannot be kept as {self}: {error}") from error

    def decode(self, data: bytes) -> Any:
        """The value of these bytes.

        Raises:
            StateMismatchError: another version of Weir wrote them.
        """
        if data[:1] != VERSION:
            if data[:1] == STAMPED:
                # The state had a TTL once.
                return self.decode(data[STAMP_BYTES:])
            raise StateMismatchError(
                f"a stored value has format version {data[:1].hex()}, this program reads {VERSION.hex()}: use the "
                "version of Weir that wrote it"
            )
        return self.from_plain(orjson.loads(data[1:]))

    def encode_many(self, values: Any) -> list[bytes | None]:
        """The bytes of each of these values (a series, an array of numpy or Arrow, or a list); None of null.

        Raises:
            TypeError, ValueError: one is none of this type.
        """
        encode = self.encode
        return [None if value is None else encode(value) for value in listed(values)]

    def decode_many(self, found: Sequence[bytes | None]) -> Any:
        """The values of these bytes: a Polars series, null where there are none; a list if no column can have them.

        Raises:
            StateMismatchError: another version of Weir wrote them.
        """
        decode = self.decode
        values = [None if data is None else decode(data) for data in found]
        return values if self.dtype is None else pl.Series(values, dtype=self.dtype)

    def __str__(self) -> str:
        return describe(self.form)

    def _wrong(self, value: Any) -> TypeError:
        if value is None:
            return TypeError(f"None is no value, the state is declared as {self}; clear() takes a value away")
        return TypeError(f"{value!r} is {type(value).__name__}, the state is declared as {self}")


class IntegerType(ValueType):
    """Whole numbers of a width."""

    def __init__(self, form: str, low: int, high: int, dtype: pl.DataType) -> None:
        self.form, self.low, self.high, self.dtype = form, low, high, dtype
        self.cell_kind = "u" if high > 2**63 else "i"

    @override
    def to_plain(self, value: Any) -> int:
        if type(value) is not int:
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise self._wrong(value)
            value = value.__index__()
        if not self.low <= value <= self.high:
            raise ValueError(f"{value} does not fit in {self}")
        return int(value)

    @override
    def from_plain(self, plain: Any) -> int:
        return plain  # type: ignore[no-any-return]


class FloatType(ValueType):
    """Numbers of 32 or 64 bits; infinities and NaN, too."""

    cell_kind = "f"

    def __init__(self, form: str, dtype: pl.DataType) -> None:
        self.form, self.dtype = form, dtype
        self._is_single = form == "float32"

    @override
    def to_plain(self, value: Any) -> Any:
        number = self.to_cell(value)
        return number if math.isfinite(number) else str(number)

    def to_cell(self, value: Any) -> float:
        """The number, as exact as this type is."""
        if type(value) is not float:
            if isinstance(value, bool | str | bytes) or not hasattr(value, "__float__"):
                raise self._wrong(value)
            value = float(value)
        if self._is_single and math.isfinite(value):
            value = struct.unpack("<f", struct.pack("<f", value))[0]
        return value  # type: ignore[no-any-return]

    @override
    def from_plain(self, plain: Any) -> float:
        return float(plain)


class BooleanType(ValueType):
    """True or False, also numpy's."""

    form = "boolean"
    cell_kind = "b"
    dtype = pl.Boolean()

    @override
    def to_plain(self, value: Any) -> bool:
        if type(value) is not bool:
            if type(value).__name__ not in ("bool", "bool_"):
                raise self._wrong(value)
            value = bool(value)
        return value  # type: ignore[no-any-return]

    @override
    def from_plain(self, plain: Any) -> bool:
        return bool(plain)


class PlainType(ValueType):
    """Text, bytes and Decimal: one Python class, and functions to and from what JSON has."""

    def __init__(
        self,
        form: str,
        kind: type,
        dtype: pl.DataType,
        make_plain: Callable[[Any], Any],
        make_value: Callable[[Any], Any],
    ) -> None:
        self.form, self.dtype = form, dtype
        self._kind, self._make_plain, self._make_value = kind, make_plain, make_value

    @override
    def to_plain(self, value: Any) -> Any:
        if not isinstance(value, self._kind):
            raise self._wrong(value)
        return self._make_plain(value)

    @override
    def from_plain(self, plain: Any) -> Any:
        return self._make_value(plain)


class BinaryType(PlainType):
    """Bytes: as they are, unless they are part of a value."""

    @override
    def encode(self, value: Any) -> bytes:
        if not isinstance(value, bytes):
            raise self._wrong(value)
        return _RAW + value

    @override
    def decode(self, data: bytes) -> Any:
        return data[1:] if data[:1] == _RAW else super().decode(data)

    @override
    def decode_many(self, found: Sequence[bytes | None]) -> Any:
        raw = [data for data in found if data is not None]
        if len(raw) < len(found) or set(map(_FIRST_BYTE, raw)) - {_RAW}:
            return super().decode_many(found)
        return pl.Series(list(map(_AFTER_IT, raw)), dtype=self.dtype)


class TemporalType(PlainType):
    """Dates and times as integers."""

    cell_kind = "i"

    @override
    def to_plain(self, value: Any) -> Any:
        if not isinstance(value, self._kind) or (self._kind is dt.date and isinstance(value, dt.datetime)):
            raise self._wrong(value)
        return self._make_plain(value)


def _with_added(plain: Sequence[Any], fields: Collection[str]) -> Sequence[Any]:
    """The fields of a stored value; those that came later, which are nullable and last, are null."""
    missing = len(fields) - len(plain)
    return plain if missing <= 0 else [*plain, *[None] * missing]
