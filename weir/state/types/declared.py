"""The way from the type that a job's author declares to the values that a state takes."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import decimal
import typing
import zoneinfo
from types import NoneType, UnionType
from typing import Any

import polars as pl

from weir.errors import GraphError
from weir.state.types.nested_types import DataclassType, ListType, StructType
from weir.state.types.value_types import (
    BinaryType,
    BooleanType,
    FloatType,
    IntegerType,
    PlainType,
    TemporalType,
    ValueType,
)

_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_UNITS_PER_S = {"ms": 10**3, "us": 10**6, "ns": 10**9}


_INTEGERS: dict[Any, ValueType] = {
    kind: IntegerType(form, low, high, kind())
    for bits in (8, 16, 32, 64)
    for form, kind, low, high in (
        (f"int{bits}", getattr(pl, f"Int{bits}"), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1),
        (f"uint{bits}", getattr(pl, f"UInt{bits}"), 0, 2**bits - 1),
    )
}
TEXT = PlainType("string", str, pl.String(), str, str)
BYTES = BinaryType(
    "binary",
    bytes,
    pl.Binary(),
    lambda value: base64.b64encode(value).decode(),
    lambda text: base64.b64decode(text),
)
_FLOAT_64 = FloatType("float64", pl.Float64())
_SIMPLE: dict[Any, ValueType] = {
    **_INTEGERS,
    pl.Float32: FloatType("float32", pl.Float32()),
    pl.Float64: _FLOAT_64,
    pl.Boolean: BooleanType(),
    pl.String: TEXT,
    pl.Binary: BYTES,
    pl.Date: TemporalType(
        "date",
        dt.date,
        pl.Date(),
        lambda day: day.toordinal() - _EPOCH_DAY,
        lambda n: dt.date.fromordinal(n + _EPOCH_DAY),
    ),
    pl.Time: TemporalType("time", dt.time, pl.Time(), lambda at: _time_ns(at), lambda n: _time_of(n)),
    int: _INTEGERS[pl.Int64],
    float: _FLOAT_64,
    str: TEXT,
    bytes: BYTES,
    bool: BooleanType(),
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
        return ListType(value_type(typing.get_args(declared)[0]))
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
        return PlainType("decimal", decimal.Decimal, dtype, str, decimal.Decimal)
    if isinstance(dtype, pl.List):
        return ListType(value_type(dtype.inner))
    if isinstance(dtype, pl.Struct):
        return StructType({field.name: value_type(field.dtype) for field in dtype.fields})
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
    return DataclassType(kind, fields)


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
    return TemporalType(form, dt.datetime, pl.Datetime(unit, zone), to_int, from_int)  # type: ignore[arg-type]


def _duration(unit: str) -> ValueType:
    per_s = _UNITS_PER_S[unit]
    return TemporalType(
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
