"""Values of state as JSON has them, and as a column of Arrow where no type of Arrow is common to them."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
from collections.abc import Sequence
from typing import Any

import orjson
import pyarrow as pa

#: Before bytes in a question that are no text, as answers show them.
BASE64 = "base64:"


def bytes_of(text: str) -> bytes:
    """The bytes that a text in a question stands for: its own in UTF-8, or after ``base64:`` those that follow.

    Raises:
        ValueError: what follows is no base64.
    """
    if not text.startswith(BASE64):
        return text.encode()
    return base64.b64decode(text.removeprefix(BASE64).replace("-", "+").replace("_", "/"), validate=True)


def text_of_bytes(value: bytes) -> str:
    """What :func:`bytes_of` reads."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = BASE64
    return BASE64 + base64.b64encode(value).decode() if text.startswith(BASE64) else text


def plain(value: Any) -> Any:
    """A value as JSON has it: times as ISO 8601, decimals as text, bytes as base64, dataclasses as objects."""
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value


def arrow_column(values: Sequence[Any]) -> pa.Array:
    """Values as Arrow: of the type that is common to them, or as :func:`json_column`."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        # Integers of more than 63 bits overflow where their type is to be found.
        return json_column(values)


def json_column(values: Sequence[Any]) -> pa.Array:
    """Values as JSON, of the extension type ``arrow.json``: readers that do not know it see a column of text."""
    texts = [None if value is None else orjson.dumps(plain(value)).decode() for value in values]
    return pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts, pa.string()))


def is_json_type(dtype: pa.DataType) -> bool:
    """Return whether a column is one of :func:`json_column`."""
    return isinstance(dtype, pa.BaseExtensionType) and dtype.extension_name == "arrow.json"


def alike(columns: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    """Columns of parts of one answer, one after the other; as JSON if no type is common to them."""
    # Of a part without rows the type of untyped values is not known.
    filled = [column for column in columns if len(column)] or columns[:1]
    if not any(is_json_type(column.type) for column in filled):
        try:
            tables = [pa.table({"value": column}) for column in filled]
            return pa.concat_tables(tables, promote_options="permissive").column(0)
        except pa.ArrowException:
            pass
    chunks = [
        chunk if is_json_type(column.type) else json_column(chunk.to_pylist())
        for column in filled
        for chunk in column.chunks
    ]
    return pa.chunked_array(chunks, pa.json_())
