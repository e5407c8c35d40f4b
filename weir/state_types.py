"""Types of declared state: what values are allowed, what they are as bytes, and which stored types another one reads.

Called by ``weir.states`` when a job is built, and by the handles of ``weir.state.handles``. A type is a Polars data
type, ``int``, ``float``, ``str``, ``bytes``, ``bool``, or a dataclass of these. Bytes are a promise (golden values in
``tests/weir/states/test_state_types.py``): a version byte, then JSON in which every value is exact.

======================  ==========================================================================
integers, booleans      as they are
floats                  shortest digits that read back the same; "nan", "inf", "-inf" as text
text, Decimal           text
bytes                   base64 text; a value that is nothing else: the version byte 02, then the bytes
date, time, datetime    an integer: days; nanoseconds; units since the epoch (UTC if there is a time zone)
duration                an integer of units
List                    array; null for a missing element
Struct, dataclass       array of the fields, in order
======================  ==========================================================================
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import decimal
import math
import struct
import typing
import zoneinfo
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any

import orjson
import polars as pl

from weir.errors import GraphError, StateMismatchError

#: First byte of a value in JSON.
VERSION = b"\x01"
#: First byte of a value that is bytes.
_RAW = b"\x02"
#: First byte of the values of a state with a TTL (``weir.state.tables.expiry``): a time follows, then the value.
STAMPED = b"\x80"
#: Bytes before the value then.
STAMP_BYTES = 9
#: A type as JSON, for snapshots: a name, or ``{"list": form}``, ``{"struct": [[name, form], ...]}``, ...
Form = Any

_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_UNITS_PER_S = {"ms": 10**3, "us": 10**6, "ns": 10**9}


class ValueType(ABC):
    """One type of values. ``None`` is no value of any type: only parts of lists and structs may be null."""

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

    def __str__(self) -> str:
        return describe(self.form)

    def _wrong(self, value: Any) -> TypeError:
        return TypeError(f"{value!r} is {type(value).__name__}, the state is declared as {self}")


class _Integer(ValueType):
    def __init__(self, form: str, low: int, high: int, dtype: pl.DataType) -> None:
        self.form, self.low, self.high, self.dtype = form, low, high, dtype
        self.cell_kind = "u" if high > 2**63 else "i"

    def to_plain(self, value: Any) -> int:
        if type(value) is not int:
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise self._wrong(value)
            value = value.__index__()
        if not self.low <= value <= self.high:
            raise ValueError(f"{value} does not fit in {self}")
        return int(value)

    def from_plain(self, plain: Any) -> int:
        return plain  # type: ignore[no-any-return]


class _Float(ValueType):
    cell_kind = "f"

    def __init__(self, form: str, dtype: pl.DataType) -> None:
        self.form, self.dtype = form, dtype
        self._is_single = form == "float32"

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

    def from_plain(self, plain: Any) -> float:
        return float(plain)


class _Boolean(ValueType):
    form = "boolean"
    cell_kind = "b"
    dtype = pl.Boolean()

    def to_plain(self, value: Any) -> bool:
        if type(value) is not bool:
            if type(value).__name__ not in ("bool", "bool_"):
                raise self._wrong(value)
            value = bool(value)
        return value  # type: ignore[no-any-return]

    def from_plain(self, plain: Any) -> bool:
        return bool(plain)


class _Plain(ValueType):
    """Text, bytes and Decimal: one Python class, and functions to and from text."""

    def __init__(
        self,
        form: str,
        kind: type,
        dtype: pl.DataType,
        to_text: Callable[[Any], str],
        from_text: Callable[[str], Any],
    ) -> None:
        self.form, self.dtype = form, dtype
        self._kind, self._to_text, self._from_text = kind, to_text, from_text

    def to_plain(self, value: Any) -> str:
        if not isinstance(value, self._kind):
            raise self._wrong(value)
        return self._to_text(value)

    def from_plain(self, plain: Any) -> Any:
        return self._from_text(plain)


class _Binary(_Plain):
    """Bytes: as they are, unless they are part of a value."""

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, bytes):
            raise self._wrong(value)
        return _RAW + value

    def decode(self, data: bytes) -> Any:
        return data[1:] if data[:1] == _RAW else super().decode(data)


class _Temporal(ValueType):
    """Dates and times as integers."""

    cell_kind = "i"

    def __init__(
        self,
        form: str,
        kind: type,
        dtype: pl.DataType,
        to_int: Callable[[Any], int],
        from_int: Callable[[int], Any],
    ) -> None:
        self.form, self.dtype = form, dtype
        self._kind, self._to_int, self._from_int = kind, to_int, from_int

    def to_plain(self, value: Any) -> int:
        if not isinstance(value, self._kind) or (self._kind is dt.date and isinstance(value, dt.datetime)):
            raise self._wrong(value)
        return self._to_int(value)

    def from_plain(self, plain: Any) -> Any:
        return self._from_int(plain)


class _List(ValueType):
    is_immutable = False

    def __init__(self, inner: ValueType) -> None:
        self.form = {"list": inner.form}
        self.dtype = None if inner.dtype is None else pl.List(inner.dtype)
        self._inner = inner

    def to_plain(self, value: Any) -> list[Any]:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
            raise self._wrong(value)
        inner = self._inner.to_plain
        return [None if item is None else inner(item) for item in value]

    def from_plain(self, plain: Any) -> list[Any]:
        inner = self._inner.from_plain
        return [None if item is None else inner(item) for item in plain]


class _Struct(ValueType):
    is_immutable = False

    def __init__(self, fields: Mapping[str, ValueType]) -> None:
        self.form = {"struct": [[name, field.form] for name, field in fields.items()]}
        self._fields = dict(fields)
        if all(field.dtype is not None for field in fields.values()):
            self.dtype = pl.Struct({name: field.dtype for name, field in fields.items()})  # type: ignore[misc]

    def to_plain(self, value: Any) -> list[Any]:
        if not isinstance(value, Mapping):
            raise self._wrong(value)
        if value.keys() != self._fields.keys():
            raise TypeError(f"{value!r} has other fields than {self}")
        return [
            None if value[name] is None else field.to_plain(value[name])
            for name, field in self._fields.items()
        ]

    def from_plain(self, plain: Any) -> dict[str, Any]:
        return {
            name: None if item is None else field.from_plain(item)
            for (name, field), item in zip(self._fields.items(), plain, strict=True)
        }


class _Dataclass(ValueType):
    is_immutable = False

    def __init__(self, kind: type, fields: Mapping[str, tuple[ValueType, bool]]) -> None:
        self.form = {
            "dataclass": [
                [name, {"nullable": field.form} if null else field.form]
                for name, (field, null) in fields.items()
            ]
        }
        self._kind = kind
        self._fields = dict(fields)

    def to_plain(self, value: Any) -> list[Any]:
        if type(value) is not self._kind:
            raise self._wrong(value)
        plain = []
        for name, (field, nullable) in self._fields.items():
            item = getattr(value, name)
            if item is None and not nullable:
                raise TypeError(f"{self._kind.__name__}.{name} is None, it is declared as {field}")
            plain.append(None if item is None else field.to_plain(item))
        return plain

    def from_plain(self, plain: Any) -> Any:
        return self._kind(
            **{
                name: None if item is None else field.from_plain(item)
                for (name, (field, _)), item in zip(self._fields.items(), plain, strict=True)
            }
        )


# --- which type is meant ---------------------------------------------------------------------------------------

_INTEGERS: dict[Any, ValueType] = {
    kind: _Integer(str(kind).lower(), low, high, kind())
    for kind, low, high in (
        *((getattr(pl, f"Int{bits}"), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)),
        *((getattr(pl, f"UInt{bits}"), 0, 2**bits - 1) for bits in (8, 16, 32, 64)),
    )
}
_TEXT = _Plain("string", str, pl.String(), str, str)
_BYTES = _Binary(
    "binary",
    bytes,
    pl.Binary(),
    lambda value: base64.b64encode(value).decode(),
    lambda text: base64.b64decode(text),
)
_FLOAT_64 = _Float("float64", pl.Float64())
_SIMPLE: dict[Any, ValueType] = {
    **_INTEGERS,
    pl.Float32: _Float("float32", pl.Float32()),
    pl.Float64: _FLOAT_64,
    pl.Boolean: _Boolean(),
    pl.String: _TEXT,
    pl.Binary: _BYTES,
    pl.Date: _Temporal(
        "date",
        dt.date,
        pl.Date(),
        lambda day: day.toordinal() - _EPOCH_DAY,
        lambda n: dt.date.fromordinal(n + _EPOCH_DAY),
    ),
    pl.Time: _Temporal("time", dt.time, pl.Time(), lambda at: _time_ns(at), lambda n: _time_of(n)),
    int: _INTEGERS[pl.Int64],
    float: _FLOAT_64,
    str: _TEXT,
    bytes: _BYTES,
    bool: _Boolean(),
    dt.date: None,  # type: ignore[dict-item]
}
_SIMPLE[dt.date] = _SIMPLE[pl.Date]
_SIMPLE[dt.time] = _SIMPLE[pl.Time]


def value_type(declared: object) -> ValueType:
    """The type that a job's author declared.

    Raises:
        GraphError: it is none that state can have; the message says which there are.
    """
    try:
        if declared in _SIMPLE:
            return _SIMPLE[declared]
    except TypeError:  # not hashable
        pass
    if isinstance(declared, pl.DataType) or (
        isinstance(declared, type) and issubclass(declared, pl.DataType)
    ):
        found = _polars_type(
            declared() if isinstance(declared, type) and not declared.is_nested() else declared
        )
        if found is not None:
            return found
    elif isinstance(declared, type) and dataclasses.is_dataclass(declared):
        return _dataclass_type(declared)
    elif declared is dt.datetime:
        return _datetime("us", None)
    elif declared is dt.timedelta:
        return _duration("us")
    elif typing.get_origin(declared) is list and typing.get_args(declared):
        return _List(value_type(typing.get_args(declared)[0]))
    raise GraphError(
        f"{declared!r} cannot be the type of a state; use a Polars number, Boolean, String, Binary, Decimal, date or "
        "time type, a List or Struct of these, int, float, str, bytes, bool, or a dataclass of these"
    )


def _polars_type(dtype: Any) -> ValueType | None:
    if type(dtype) in _SIMPLE:
        return _SIMPLE[type(dtype)]
    if isinstance(dtype, pl.Datetime):
        return _datetime(dtype.time_unit, dtype.time_zone)
    if isinstance(dtype, pl.Duration):
        return _duration(dtype.time_unit)
    if isinstance(dtype, pl.Decimal):
        return _Plain("decimal", decimal.Decimal, dtype, str, decimal.Decimal)
    if isinstance(dtype, pl.List):
        return _List(value_type(dtype.inner))
    if isinstance(dtype, pl.Struct):
        return _Struct({field.name: value_type(field.dtype) for field in dtype.fields})
    return None


def _dataclass_type(kind: type) -> ValueType:
    hints = typing.get_type_hints(kind)
    fields: dict[str, tuple[ValueType, bool]] = {}
    for field in dataclasses.fields(kind):
        if not field.init:
            raise GraphError(f"field {field.name!r} of {kind.__name__} is not set by its constructor")
        hint, nullable = hints[field.name], False
        if typing.get_origin(hint) in (typing.Union, UnionType):
            others = [item for item in typing.get_args(hint) if item is not NoneType]
            nullable = len(others) < len(typing.get_args(hint))
            hint = others[0] if len(others) == 1 else hint
        try:
            fields[field.name] = value_type(hint), nullable
        except GraphError as error:
            raise GraphError(f"field {field.name!r} of {kind.__name__}: {error}") from error
    return _Dataclass(kind, fields)


def _datetime(unit: str, zone: str | None) -> ValueType:
    per_s = _UNITS_PER_S[unit]
    epoch = _EPOCH if zone is None else _EPOCH_UTC
    zone_info = None if zone is None else zoneinfo.ZoneInfo(zone)

    def to_int(value: dt.datetime) -> int:
        if (value.tzinfo is None) != (zone is None):
            raise ValueError(f"{value!r} and {form} differ in having a time zone")
        return _units(value - epoch, per_s)

    def from_int(units: int) -> dt.datetime:
        value = epoch + _delta(units, per_s)
        return value if zone_info is None else value.astimezone(zone_info)

    form = f"datetime[{unit}]" if zone is None else f"datetime[{unit}, {zone}]"
    return _Temporal(form, dt.datetime, pl.Datetime(unit, zone), to_int, from_int)  # type: ignore[arg-type]


def _duration(unit: str) -> ValueType:
    per_s = _UNITS_PER_S[unit]
    return _Temporal(
        f"duration[{unit}]",
        dt.timedelta,
        pl.Duration(unit),  # type: ignore[arg-type]
        lambda value: _units(value, per_s),
        lambda units: _delta(units, per_s),
    )


def _units(delta: dt.timedelta, per_s: int) -> int:
    us = (delta.days * 86_400 + delta.seconds) * 10**6 + delta.microseconds
    return us * per_s // 10**6


def _delta(units: int, per_s: int) -> dt.timedelta:
    return dt.timedelta(microseconds=units * 10**6 // per_s)


def _time_ns(value: dt.time) -> int:
    return (((value.hour * 60 + value.minute) * 60 + value.second) * 10**6 + value.microsecond) * 1000


def _time_of(ns: int) -> dt.time:
    return (dt.datetime.min + dt.timedelta(microseconds=ns // 1000)).time()


# --- types that were stored ------------------------------------------------------------------------------------


def describe(form: Form) -> str:
    """A form as text, for messages."""
    if not isinstance(form, dict):
        return str(form)
    ((kind, inner),) = form.items()
    if kind in ("struct", "dataclass", "map"):
        return f"{kind}<{', '.join(f'{name}: {describe(field)}' for name, field in inner)}>"
    if kind == "tuple":
        return f"({', '.join(map(describe, inner))})"
    return f"{kind}<{describe(inner)}>"


_WIDTHS = {
    "int8": 8,
    "int16": 16,
    "int32": 32,
    "int64": 64,
    "uint8": 8,
    "uint16": 16,
    "uint32": 32,
    "uint64": 64,
}


def reads(stored: Form, needed: Form) -> bool:
    """Whether values of the stored type are values of the needed one, byte for byte: the same, or narrower numbers."""
    if stored == needed:
        return True
    if isinstance(stored, dict) and isinstance(needed, dict):
        if stored.keys() != needed.keys():
            return "nullable" in needed and reads(stored, needed["nullable"])
        ((kind, a),), ((_, b),) = stored.items(), needed.items()
        if kind in ("struct", "dataclass"):
            return [name for name, _ in a] == [name for name, _ in b] and all(
                reads(x, y) for (_, x), (_, y) in zip(a, b, strict=True)
            )
        return kind != "tuple" and reads(a, b)
    if isinstance(needed, dict):
        return "nullable" in needed and reads(stored, needed["nullable"])
    if stored == "float32" and needed == "float64":
        return True
    if stored in _WIDTHS and needed in _WIDTHS:
        grows = _WIDTHS[needed] > _WIDTHS[stored]
        return grows and (not needed.startswith("u") or stored.startswith("u"))
    return False


def key_reads(stored: Form, needed: Form) -> bool:
    """As :func:`reads`, of the keys of maps: wider integers have the same bytes, but not within tuples."""
    return stored == needed or (
        isinstance(needed, str) and needed != "uint64" and isinstance(stored, str) and reads(stored, needed)
    )


# --- keys of maps ----------------------------------------------------------------------------------------------


class MapKeyType:
    """Keys of a map as bytes whose order is that of the keys; several types: tuples, by their first part first."""

    def __init__(self, declared: object) -> None:
        """Take one type or a tuple of types.

        Raises:
            GraphError: keys cannot have this type.
        """
        self._is_tuple = isinstance(declared, tuple)
        parts = declared if isinstance(declared, tuple) else (declared,)
        self._types = [value_type(part) for part in parts]
        for part in self._types:
            if not (part in (_TEXT, _BYTES) or part.cell_kind in ("i", "u", "b")) or not parts:
                raise GraphError(
                    f"{part} cannot be the type of a map's keys; use integers, Boolean, String, Binary, dates and "
                    "times, or a tuple of these"
                )
        if not parts:
            raise GraphError("a map's key has at least one part")
        self.form: Form = (
            {"tuple": [part.form for part in self._types]} if self._is_tuple else self._types[0].form
        )

    def encode(self, key: Any) -> bytes:
        """The bytes of a key.

        Raises:
            TypeError, ValueError: it is none of this type.
        """
        if not self._is_tuple:
            return _part_bytes(self._types[0], key)
        if not isinstance(key, tuple) or len(key) != len(self._types):
            raise TypeError(f"{key!r} is not a tuple of {len(self._types)} parts")
        return b"".join(
            _ended(part, _part_bytes(part, item)) for part, item in zip(self._types, key, strict=True)
        )

    def decode(self, data: bytes) -> Any:
        """The key of these bytes."""
        if not self._is_tuple:
            return _part_of(self._types[0], data)
        items, at = [], 0
        for part in self._types:
            if part in (_TEXT, _BYTES):
                stop = at
                while data[stop : stop + 2] != b"\x00\x01":
                    stop += 2 if data[stop] == 0 else 1
                items.append(_part_of(part, data[at:stop].replace(b"\x00\xff", b"\x00")))
                at = stop + 2
            else:
                width = 1 if part.cell_kind == "b" else 8
                items.append(_part_of(part, data[at : at + width]))
                at += width
        return tuple(items)


def _part_bytes(part: ValueType, value: Any) -> bytes:
    plain = part.to_plain(value)
    if part is _TEXT:
        return str(plain).encode()
    if part is _BYTES:
        return bytes(value)
    if part.cell_kind == "b":
        return b"\x01" if plain else b"\x00"
    biased: int = plain if part.cell_kind == "u" else plain + 2**63
    return biased.to_bytes(8, "big")


def _part_of(part: ValueType, data: bytes) -> Any:
    if part is _TEXT:
        return data.decode()
    if part is _BYTES:
        return data
    if part.cell_kind == "b":
        return data == b"\x01"
    number = int.from_bytes(data, "big")
    return part.from_plain(number if part.cell_kind == "u" else number - 2**63)


def _ended(part: ValueType, data: bytes) -> bytes:
    """Text within a tuple ends with a mark that sorts before everything that may follow in a longer text."""
    return data.replace(b"\x00", b"\x00\xff") + b"\x00\x01" if part in (_TEXT, _BYTES) else data
