"""Decimals that are aggregated: exactly, as integers of 128 bits in two cells, of up to 38 digits.

Results are of the types of SQL: a sum has the column's digits after the point and 38 in all, a minimum the column's
type, a mean six digits after the point at least, rounded half away from zero (``weir.specs.aggregate_functions``).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from weir.errors import WeirError
from weir.operators.aggregation import decimal_kernels as kernels
from weir.operators.aggregation.columns import name_of, rows_that_count
from weir.specs.aggregate_functions import AnyAggregate, decimal_type


def decimal_cells(column: pa.Array | None, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values of a column of decimals as int64, shape (rows, 2), and which rows count (of length 0: all)."""
    assert column is not None, "the graph checks that there is a column"
    values = np.frombuffer(column.buffers()[1], dtype=np.int64).reshape(-1, 2)
    return values[column.offset : column.offset + len(column)], rows_that_count(column, mask)


def decimals_of(cells: np.ndarray, valid: np.ndarray, dtype: pa.DataType) -> pa.Array:
    """What :func:`decimal_cells` took, of a type of its own; null where ``valid`` is 0 or False."""
    bits = None
    if not valid.all():
        bits = pa.py_buffer(np.packbits(valid != 0, bitorder="little"))
    return pa.Array.from_buffers(dtype, len(cells), [bits, pa.py_buffer(np.ascontiguousarray(cells))])


def means_of(aggregate: AnyAggregate, sums: np.ndarray, counts: np.ndarray, dtype: pa.DataType) -> pa.Array:
    """Means of values of type ``dtype``; null where there is no value.

    Args:
        aggregate: for messages.
        sums: int64, shape (results, 2).
        counts: int64, shape (results,).
        dtype: of the values.

    Raises:
        WeirError: a mean has more than 38 digits.
    """
    made, counts = np.array(sums, order="C"), np.ascontiguousarray(counts)
    target = decimal_type("mean", dtype)
    if kernels.divide(made, counts, target.scale - dtype.scale) >= 0:
        raise too_long(aggregate)
    return decimals_of(made, counts > 0, target)


def too_long(aggregate: AnyAggregate) -> WeirError:
    """A sum or mean does not fit its type."""
    return WeirError(
        f"aggregate {name_of(aggregate)}: a key's {aggregate.function} passes the 38 digits of a decimal; cast the "
        "column to float64 first"
    )
