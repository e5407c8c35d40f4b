"""Columns that are in the names of a file's folders, as Hive, Spark and our sinks write them: ``day=2026-11-22/``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pa_types

from weir.errors import InputError
from weir.rows.decimals import decimals_of_texts

#: The folder of rows that have no value.
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


def folder_values(file: str) -> dict[str, str | None]:
    """What the folders of a file say of its rows: ``country=be/day=2026-11-22``; None is no value."""
    found = {}
    for folder in file.split("/")[:-1]:
        name, equals, text = folder.partition("=")
        if name and equals:
            found[unquote(name)] = None if text == NULL_FOLDER else unquote(text)
    return found


def folder_constants(
    file: str, schema: pa.Schema, own: Collection[str], mend: str = ""
) -> dict[str, pa.Scalar]:
    """Return the value of all rows of a file in the columns that its folders say.

    Args:
        file: its path.
        schema: the columns that are wanted.
        own: those that are not looked for in folders, as the file has them.
        mend: what else can be done where a value is not of its column's type, with ``{column}`` for its name.

    Raises:
        InputError: a value is not of its column's type.
    """
    if "=" not in file:
        return {}
    found = folder_values(file)
    wanted = (field for field in schema if field.name in found and field.name not in own)
    return {field.name: _constant(file, field, found[field.name], mend) for field in wanted}


def _constant(file: str, field: pa.Field, text: str | None, mend: str) -> pa.Scalar:
    data_type = field.type
    if text is None:
        return pa.scalar(None, data_type)
    try:
        if pa_types.is_binary(data_type) or pa_types.is_large_binary(data_type):
            return pa.scalar(bytes.fromhex(text), data_type)
        if pa_types.is_decimal128(data_type):
            return decimals_of_texts(pa.array([text]), data_type)[0]
        return pa.scalar(text).cast(data_type)
    except (pa.ArrowException, ValueError):
        raise InputError(
            f"{file}: column {field.name} is {text!r} by its folder, which is not of type {data_type}; correct the "
            f"source's schema or the folder's name{mend.format(column=field.name)}"
        ) from None


def without_required(schema: pa.Schema, constants: Mapping[str, pa.Scalar]) -> pa.Schema:
    """The schema where columns for which there is a value may lack one."""
    has_value = {name for name, constant in constants.items() if constant.is_valid}
    return pa.schema([field.with_nullable(field.nullable or field.name in has_value) for field in schema])


def with_constants(
    batch: pa.RecordBatch, rows: int, constants: Mapping[str, pa.Scalar], schema: pa.Schema
) -> pa.RecordBatch:
    """Rows with the columns of their folders, which have their value where the rows have none of their own.

    Args:
        batch: the rows; it may lack columns that are constant, and have no column at all.
        rows: their number.
        constants: by column.
        schema: the columns of the result.
    """
    arrays = []
    for field in schema:
        constant, name = constants.get(field.name), field.name
        if constant is None:
            arrays.append(batch.column(name))
        elif name not in batch.schema.names or batch.column(name).null_count == rows:
            arrays.append(pa.repeat(constant, rows))
        else:
            arrays.append(pc.coalesce(batch.column(name), constant))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
