"""What lists, structs and dataclasses are as bytes; the table is in ``weir.state.types``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import polars as pl
from typing_extensions import override

from weir.state.types.value_types import _PLAIN_DTYPES, VERSION, ValueType, _with_added


class ListType(ValueType):
    """Lists of values of one type; elements may be null."""

    is_immutable = False

    def __init__(self, inner: ValueType) -> None:
        self.form = {"list": inner.form}
        self.dtype = None if inner.dtype is None else pl.List(inner.dtype)
        self._inner = inner

    @override
    def to_plain(self, value: Any) -> list[Any]:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
            raise self._wrong(value)
        inner = self._inner.to_plain
        return [None if item is None else inner(item) for item in value]

    @override
    def from_plain(self, plain: Any) -> list[Any]:
        inner = self._inner.from_plain
        return [None if item is None else inner(item) for item in plain]


class StructType(ValueType):
    """Mappings with known names; values may be null."""

    is_immutable = False

    def __init__(self, fields: Mapping[str, ValueType]) -> None:
        self.form = {"struct": [[name, field.form] for name, field in fields.items()]}
        self._fields = dict(fields)
        if all(field.dtype is not None for field in fields.values()):
            self.dtype = pl.Struct({name: field.dtype for name, field in fields.items()})  # type: ignore[misc]
        #: JSON has just what a column of Polars has, so that columns need not be taken apart value by value.
        self._is_plain = all(isinstance(field.dtype, _PLAIN_DTYPES) for field in fields.values())

    @override
    def encode_many(self, values: Any) -> list[bytes | None]:
        if not (self._is_plain and isinstance(values, pl.Series) and values.dtype == self.dtype):
            return super().encode_many(values)
        dumps = orjson.dumps
        # Polars makes the rows, and has checked their types.
        found: list[bytes | None] = [VERSION + dumps(row) for row in values.struct.unnest().iter_rows()]
        if values.null_count():
            for row in values.is_null().arg_true().to_list():
                found[row] = None
        return found

    @override
    def decode_many(self, found: Sequence[bytes | None]) -> Any:
        # Columns are made from what JSON has, without a dictionary for each value.
        if not self._is_plain or not found or any(data is None or data[:1] != VERSION for data in found):
            return super().decode_many(found)
        loads, fields = orjson.loads, self._fields
        rows = [_with_added(loads(data[1:]), fields) for data in found]  # type: ignore[index]
        columns = zip(fields.items(), zip(*rows, strict=True), strict=True)
        return pl.DataFrame(
            [pl.Series(name, column, field.dtype) for (name, field), column in columns]
        ).to_struct()

    @override
    def to_plain(self, value: Any) -> list[Any]:
        if not isinstance(value, Mapping):
            raise self._wrong(value)
        if value.keys() != self._fields.keys():
            raise TypeError(f"{value!r} has other fields than {self}")
        return [
            None if value[name] is None else field.to_plain(value[name])
            for name, field in self._fields.items()
        ]

    @override
    def from_plain(self, plain: Any) -> dict[str, Any]:
        return {
            name: None if item is None else field.from_plain(item)
            for (name, field), item in zip(
                self._fields.items(), _with_added(plain, self._fields), strict=True
            )
        }


class DataclassType(ValueType):
    """Instances of a user's dataclass; fields with ``| None`` may be null."""

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

    @override
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

    @override
    def from_plain(self, plain: Any) -> Any:
        return self._kind(
            **{
                name: None if item is None else field.from_plain(item)
                for (name, (field, _)), item in zip(
                    self._fields.items(), _with_added(plain, self._fields), strict=True
                )
            }
        )
