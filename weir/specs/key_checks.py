"""Which columns can be keys; checked when ``key_by`` is written down."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from weir.errors import GraphError
from weir.spelling import did_you_mean


def check_is_name(where: str, value: object) -> None:
    """Refuse what is no name of a column, such as ``pl.col("x") * 2``; ``where``: of whom.

    Raises:
        GraphError: it is none.
    """
    if not isinstance(value, str):
        raise GraphError(
            f"{where} takes the name of a column, got {type(value).__name__}; make what is computed a column first, "
            "in a with_columns step"
        )


def check_key_columns(step: str, columns: Iterable[str], schema: pa.Schema) -> None:
    """Refuse keys that are absent or have no stable hash (floating point, nested).

    Raises:
        GraphError: names the column and the mend.
    """
    names = list(columns)
    if not names:
        raise GraphError(f"step {step!r}: key_by needs at least one column")
    for position, name in enumerate(names):
        if not isinstance(name, str):
            raise GraphError(
                f'step {step!r}: key_by takes names of columns, key_by("a", "b"), got {type(name).__name__}; '
                "make what is computed a column first, in a with_columns step"
            )
        if name in names[:position]:
            raise GraphError(f"step {step!r}: key column {name!r} is there twice")
        if name not in schema.names:
            raise GraphError(
                f"step {step!r}: there is no key column {name!r}{did_you_mean(name, schema.names)}"
            )
        _check_key_type(step, name, schema.field(name).type)


def _check_key_type(step: str, name: str, dtype: pa.DataType) -> None:
    """The rule of ``weir.keys.encoding``, repeated here because that module loads compiled kernels."""
    if pa.types.is_floating(dtype):
        raise GraphError(
            f"step {step!r}: key column {name!r} is {dtype}, and equal floating-point values may differ in "
            "their bytes; cast it to an integer or a string before key_by"
        )
    text = pa.types.is_string(dtype) or pa.types.is_binary(dtype) or pa.types.is_fixed_size_binary(dtype)
    number = pa.types.is_integer(dtype) or pa.types.is_boolean(dtype) or pa.types.is_temporal(dtype)
    if not (text or number) or pa.types.is_interval(dtype):
        raise GraphError(
            f"step {step!r}: key column {name!r} is {dtype}; keys are strings, bytes, integers, booleans, "
            "dates or times, or several of them"
        )
