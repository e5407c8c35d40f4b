"""The spelling of Arrow types that fingerprints and checkpoints have: golden texts, for later versions of pyarrow."""

import pyarrow as pa
import pytest

import weir
from weir.specs.arrow_form import arrow_form, schema_form


def field(name, dtype, nullable=True):
    return pa.field(name, dtype, nullable=nullable)


GOLDEN = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "halffloat": pa.float16(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "binary_view": pa.binary_view(),
    "fixed_size_binary[16]": pa.binary(16),
    "date32[day]": pa.date32(),
    "date64[ms]": pa.date64(),
    "time32[s]": pa.time32("s"),
    "time32[ms]": pa.time32("ms"),
    "time64[us]": pa.time64("us"),
    "time64[ns]": pa.time64("ns"),
    "timestamp[s]": pa.timestamp("s"),
    "timestamp[ms]": pa.timestamp("ms"),
    "timestamp[us]": pa.timestamp("us"),
    "timestamp[ns]": pa.timestamp("ns"),
    "timestamp[us, tz=Europe/Berlin]": pa.timestamp("us", "Europe/Berlin"),
    "timestamp[ns, tz=+01:00]": pa.timestamp("ns", "+01:00"),
    "duration[s]": pa.duration("s"),
    "duration[ms]": pa.duration("ms"),
    "duration[us]": pa.duration("us"),
    "duration[ns]": pa.duration("ns"),
    "month_day_nano_interval": pa.month_day_nano_interval(),
    "decimal32(5, 1)": pa.decimal32(5, 1),
    "decimal64(12, 3)": pa.decimal64(12, 3),
    "decimal128(10, 2)": pa.decimal128(10, 2),
    "decimal256(40, -2)": pa.decimal256(40, -2),
    "list<item: int64>": pa.list_(pa.int64()),
    "list<element: int64 not null>": pa.list_(field("element", pa.int64(), nullable=False)),
    "large_list<item: string>": pa.large_list(pa.string()),
    "list_view<item: int8>": pa.list_view(pa.int8()),
    "large_list_view<item: int8>": pa.large_list_view(pa.int8()),
    "fixed_size_list<item: float>[3]": pa.list_(pa.float32(), 3),
    "struct<>": pa.struct([]),
    "struct<a: int64, b: string not null>": pa.struct(
        [field("a", pa.int64()), field("b", pa.string(), nullable=False)]
    ),
    "list<item: struct<at: timestamp[ms], tags: list<item: string>>>": pa.list_(
        pa.struct([("at", pa.timestamp("ms")), ("tags", pa.list_(pa.string()))])
    ),
    "map<string, int64>": pa.map_(pa.string(), pa.int64()),
    "map<string, list<item: int8>, keys_sorted>": pa.map_(pa.string(), pa.list_(pa.int8()), keys_sorted=True),
    "map<string ('k'), int8 ('v')>": pa.map_(
        field("k", pa.string(), nullable=False), field("v", pa.int8(), nullable=False)
    ),
    "dictionary<values=string, indices=int32, ordered=0>": pa.dictionary(pa.int32(), pa.string()),
    "dictionary<values=string, indices=int8, ordered=1>": pa.dictionary(pa.int8(), pa.string(), ordered=True),
}


@pytest.mark.parametrize(("text", "dtype"), GOLDEN.items(), ids=GOLDEN)
def test_golden_texts_are_those_of_checkpoints_of_before(text, dtype):
    assert arrow_form(dtype) == text
    # As pyarrow 26 shows it, by which the checkpoints of before were made.
    assert pa.__version__.split(".")[0] != "26" or str(dtype) == text


def test_no_two_types_have_one_text():
    odd = [
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        pa.struct([("a: int64, b", pa.string())]),
        pa.struct([('"a: int64, b"', pa.string())]),
        pa.uuid(),
        pa.json_(),
    ]
    assert len({arrow_form(dtype) for dtype in [*GOLDEN.values(), *odd]}) == len(GOLDEN) + len(odd)


@pytest.mark.parametrize(
    "inner",
    [pa.dense_union([pa.field("a", pa.int8())]), pa.run_end_encoded(pa.int32(), pa.string())],
    ids=str,
)
def test_other_types_are_refused(inner):
    with pytest.raises(weir.GraphError, match="is a type that has no form in a checkpoint; cast it"):
        arrow_form(pa.list_(inner))


def test_columns_with_their_names_in_order():
    schema = pa.schema([field("b", pa.int8(), nullable=False), field("a", pa.string())])
    assert schema_form(schema) == [["b", "int8", False], ["a", "string", True]]
