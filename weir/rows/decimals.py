"""Decimals of texts and of other decimals, exactly: a number that does not fit is refused.

Arrow multiplies a decimal of 128 bits by a power of ten without seeing each overflow: of 13 digits before the point it
makes another number with 28 after it. So numbers go by 256 bits here, and those written in an unusual way by Python.
"""

from __future__ import annotations

import decimal
import json
import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pa_types

from weir.rows.schemas import is_list, with_innermost

#: Digits of a decimal of 256 bits. Those of a plain text, and as many zeros as a column can add, are no more.
_WIDE_DIGITS = 76
_PLAIN_CHARACTERS_MAX = 38
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?", re.ASCII)
#: Digits, and zeros behind an exponent, beyond which decimals of 256 bits can overflow; what follows is a value's end.
_UNUSUAL = re.compile(
    rb'[:\[,][ \t\r]*"?[+-]?(?:[0-9.]{29,}(?:[eE][+-]?[0-9]+)?|[0-9.]+[eE][+-]?0*[1-9][0-9]+)(?="?[ \t\r]*[,}\]\n])'
)
#: Exact with any number of a column: 38 digits, wherever their point is.
_EXACT = decimal.Context(prec=400, Emax=10**7, Emin=-(10**7), traps=[decimal.InvalidOperation])


def has_decimals(data_type: pa.DataType) -> bool:
    """Whether a type is that of decimals of 128 bits, or has such within it."""
    if is_list(data_type):
        return has_decimals(data_type.value_type)
    if pa_types.is_struct(data_type):
        return any(has_decimals(field.type) for field in data_type)
    return bool(pa_types.is_decimal128(data_type))


def are_floats(actual: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values have floats where decimals are wanted, also within lists and structs: these would be rounded."""
    if pa_types.is_struct(wanted) and pa_types.is_struct(actual):
        inner = {field.name: field.type for field in actual}
        return any(f.name in inner and are_floats(inner[f.name], f.type) for f in wanted)
    if is_list(wanted) and actual.num_fields == 1:
        return are_floats(actual.field(0).type, wanted.value_type)
    return bool(pa_types.is_decimal(wanted) and pa_types.is_floating(actual))


def wide(data_type: pa.DataType) -> pa.DataType:
    """The type of as many digits after the point as this decimal, and as many before it as 256 bits have.

    Of other types, what is within lists and structs is changed so, and the rest is as it was.
    """
    return with_innermost(data_type, _wide)


def _wide(data_type: pa.DataType) -> pa.DataType:
    is_short = pa_types.is_decimal128(data_type)
    return pa.decimal256(_WIDE_DIGITS, data_type.scale) if is_short else data_type


def cast_exactly(values: pa.ChunkedArray, data_type: pa.DataType) -> pa.ChunkedArray:
    """Values as those of another type, as Arrow casts them but for decimals that would overflow.

    Args:
        values: decimals of at most 38 digits, texts of such, or lists and structs with them.
        data_type: has decimal128, itself or within it.

    Raises:
        pa.ArrowException: one does not fit.
    """
    if pa_types.is_decimal128(data_type) and (
        pa_types.is_string(values.type) or pa_types.is_large_string(values.type)
    ):
        return pa.chunked_array([decimals_of_texts(each, data_type) for each in values.chunks], data_type)
    return values.cast(wide(data_type)).cast(data_type)


def decimals_of_texts(texts: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Texts (string or large_string) as decimal128.

    Raises:
        pa.ArrowInvalid: one is no number, or does not fit.
    """
    plain = pc.match_substring_regex(texts, rf"^[+-]?[0-9.]{{1,{_PLAIN_CHARACTERS_MAX}}}$")
    if not pc.all(plain).as_py():
        written = [text if text is None else _plainly(text, data_type) for text in texts.to_pylist()]
        texts = pa.array(written, texts.type)
    return pc.cast(pc.cast(texts, wide(data_type)), data_type)


def _plainly(text: str, data_type: pa.DataType) -> str:
    """A number that fits without exponent and with few zeros; anything else as something that is no number."""
    fitting = _fitting(_EXACT.create_decimal(text), data_type) if _NUMBER.fullmatch(text) else None
    return "no number" if fitting is None else format(fitting, "f")


def _fitting(number: decimal.Decimal, data_type: pa.DataType) -> decimal.Decimal | None:
    """The number with the digits after the point that the type has; None: it does not fit."""
    if not number:
        return decimal.Decimal(0)
    if not -_WIDE_DIGITS <= number.adjusted() <= _WIDE_DIGITS:
        return None
    found = number.quantize(decimal.Decimal(1).scaleb(-data_type.scale), context=_EXACT)
    return found if found == number and found.adjusted() < data_type.precision - data_type.scale else None


def may_overflow(lines: bytes) -> bool:
    """Whether lines of JSON may have numbers too long for decimals of 256 bits before they are cast."""
    return _UNUSUAL.search(lines) is not None


def are_decimals_of(line: bytes, batch: pa.RecordBatch) -> bool:
    """Whether the decimals of a record are those of its line of JSON.

    Args:
        line: one object.
        batch: the record that was made of it.
    """
    whole = json.loads(line, parse_float=_EXACT.create_decimal, parse_int=_EXACT.create_decimal)
    record = batch.to_pylist()[0]
    return all(_are_equal(whole.get(field.name), record[field.name], field.type) for field in batch.schema)


def _are_equal(given: Any, found: Any, data_type: pa.DataType) -> bool:
    if given is None or found is None or not has_decimals(data_type):
        return True
    if is_list(data_type):
        return all(_are_equal(*pair, data_type.value_type) for pair in zip(given, found, strict=True))
    if pa_types.is_struct(data_type):
        return all(_are_equal(given.get(item.name), found[item.name], item.type) for item in data_type)
    return bool(_EXACT.create_decimal(given) == found)
