"""Which types of columns Spark has, and how rows of Weir travel to Spark's tasks and back."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

#: Whole numbers and others, by Arrow's name: what they are called in Spark SQL.
_PLAIN = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.date32(): "DATE",
}
#: Types that travel as a larger one.
_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}


def wire_type(dtype: pa.DataType) -> pa.DataType | None:
    """The type as which values travel to Spark, from which they come back as they were; None: Spark has none."""
    if dtype in _PLAIN:
        return dtype
    if dtype in _WIDER:
        return _WIDER[dtype]
    if pat.is_timestamp(dtype):
        # Nanoseconds have no place there, and a zone is a matter of the session.
        return None if dtype.unit == "ns" else pa.timestamp("us", "UTC" if dtype.tz else None)
    if pat.is_decimal128(dtype):
        return dtype if 0 <= dtype.scale <= dtype.precision else None
    if pat.is_list(dtype) or pat.is_large_list(dtype):
        item = wire_type(dtype.value_type)
        return None if item is None else pa.list_(pa.field("element", item, True))
    if pat.is_struct(dtype):
        fields = [(field.name, wire_type(field.type)) for field in dtype]
        if not fields or any(kind is None for _, kind in fields):
            return None
        return pa.struct([pa.field(name, kind, True) for name, kind in fields])
    return None


def spark_type(dtype: pa.DataType) -> str:
    """What a type of :func:`wire_type` is called in Spark SQL."""
    if dtype in _PLAIN:
        return _PLAIN[dtype]
    if pat.is_timestamp(dtype):
        return "TIMESTAMP" if dtype.tz else "TIMESTAMP_NTZ"
    if pat.is_decimal128(dtype):
        return f"DECIMAL({dtype.precision},{dtype.scale})"
    if pat.is_list(dtype):
        return f"ARRAY<{spark_type(dtype.value_type)}>"
    fields = ", ".join(f"{quoted(field.name)}: {spark_type(field.type)}" for field in dtype)
    return f"STRUCT<{fields}>"


def wire_schema(schema: pa.Schema) -> pa.Schema:
    """The columns as they travel; every one may be null there. Only of columns that :func:`wire_type` has."""
    return pa.schema([pa.field(field.name, wire_type(field.type), True) for field in schema])


def ddl(schema: pa.Schema) -> str:
    """Columns of :func:`wire_schema` as Spark SQL writes them down."""
    return ", ".join(f"{quoted(field.name)} {spark_type(field.type)}" for field in schema)


def quoted(name: str) -> str:
    """A column's name in Spark SQL, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def has_plain_text(dtype: pa.DataType) -> bool:
    """Whether values have the same form as texts in Spark: times, bytes and numbers with a point have another one."""
    return bool(pat.is_integer(dtype) or pat.is_string(dtype) or pat.is_boolean(dtype))


def literal(text: str) -> str:
    """A text in Spark SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def foreign_column(schema: pa.Schema) -> str | None:
    """The first column, and its type, that Spark has no type for; None: there is none."""
    for field in schema:
        if wire_type(field.type) is None:
            return f"column {field.name!r} is {field.type}"
    return None


def cast_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly these columns and types; values that do not fit raise ``pa.ArrowInvalid``."""
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for field, column in zip(schema, map(batch.column, schema.names), strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
