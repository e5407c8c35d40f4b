"""Simple predicates over integer columns as NumPy functions.

A Polars call costs 60 to 250 µs however few rows there are; with its frame and its mask it costs more than NumPy for
32,768 rows, too (to filter by ``id % 4 != 0``: 594 µs and 324). Only int64 columns without nulls, integer literals,
``+ - * %``, comparisons, ``&`` and ``|`` are translated, and each translation is compared with Polars itself on edge
values before it is used; anything else stays with Polars.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import numpy as np
import polars as pl
import pyarrow as pa

Columns = Mapping[str, np.ndarray]
_Compiled = Callable[[Columns], np.ndarray]

_OPERATIONS: Mapping[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "Plus": np.add,
    "Minus": np.subtract,
    "Multiply": np.multiply,
    "Eq": np.equal,
    "NotEq": np.not_equal,
    "Lt": np.less,
    "LtEq": np.less_equal,
    "Gt": np.greater,
    "GtEq": np.greater_equal,
}
_LOGICAL = {"And": np.logical_and, "Or": np.logical_or}
_EDGES = (-(2**63), -(2**62), -1001, -5, -4, -3, -1, 0, 1, 3, 4, 5, 1000, 2**31, 2**62, 2**63 - 1)


class SmallPredicate:
    """A translated predicate; see the module. Called by the filter, in the subtask's thread."""

    def __init__(self, names: tuple[str, ...], function: _Compiled) -> None:
        self._names = names
        self._function = function

    def mask(self, batch: pa.RecordBatch) -> np.ndarray:
        """Return whether each row is kept: bool, shape (rows,)."""
        columns = {name: batch.column(name).to_numpy(zero_copy_only=True) for name in self._names}
        return self._function(columns)


def small_predicate(predicate: pl.Expr, schema: pa.Schema) -> SmallPredicate | None:
    """Translate a predicate over batches of this schema; None if that is not possible for certain."""
    names = tuple(dict.fromkeys(predicate.meta.root_names()))
    if not names or any(not _is_plain_integer(schema, name) for name in names):
        return None
    try:
        tree = json.loads(predicate.meta.serialize(format="json"))
        compiled = _compile(tree)
    except (ValueError, TypeError, KeyError, AssertionError, OverflowError, pl.exceptions.PolarsError):
        # Polars' form of expressions is its own business and may change.
        return None
    if compiled is None or not _agrees(predicate, names, compiled):
        return None
    return SmallPredicate(names, compiled)


def _is_plain_integer(schema: pa.Schema, name: str) -> bool:
    index = schema.get_field_index(name)
    return index >= 0 and schema.field(index).type == pa.int64() and not schema.field(index).nullable


def _compile(tree: Mapping[str, object]) -> _Compiled | None:
    """The function of a node: integers for arithmetic, booleans for comparisons."""
    if "Column" in tree:
        name = str(tree["Column"])
        return lambda columns: columns[name]
    if "Literal" in tree:
        literal = np.array(_integer(tree["Literal"]), dtype=np.int64)
        return lambda columns: literal
    node = tree["BinaryExpr"]
    assert isinstance(node, dict)
    kind = node["op"]
    left = _compile(node["left"])
    if kind == "Modulus" and left is not None:
        return _remainder(left, node["right"])
    operation = _OPERATIONS.get(kind) or _LOGICAL.get(kind)
    right = _compile(node["right"])
    if operation is None or left is None or right is None:
        return None
    return lambda columns: operation(left(columns), right(columns))


def _remainder(dividends: _Compiled, divisor_node: Mapping[str, object]) -> _Compiled | None:
    """Return the remainder by a positive literal, as large as zero at least, in a half or less of ``np.mod``'s time.

    NumPy divides by a constant with vector instructions, but has none for remainders (32,768 rows: 22 µs and 55; 4 µs
    for a power of two).
    """
    if "Literal" not in divisor_node or (number := _integer(divisor_node["Literal"])) <= 0:
        return None
    divisor, lowest_bits = np.array(number, dtype=np.int64), np.array(number - 1, dtype=np.int64)
    if number & (number - 1) == 0:
        return lambda columns: dividends(columns) & lowest_bits

    def remainder(columns: Columns) -> np.ndarray:
        values = dividends(columns)
        rounded: np.ndarray = np.floor_divide(values, divisor)
        np.multiply(rounded, divisor, out=rounded)
        np.subtract(values, rounded, out=rounded)
        return rounded

    return remainder


def _integer(literal: object) -> int:
    """The value of an integer literal: one without a type of its own, or an int64, as SQL writes it."""
    assert isinstance(literal, dict)
    value = literal["Dyn"]["Int"] if "Dyn" in literal else literal["Scalar"]["Int64"]
    assert type(value) is int
    return value


def _agrees(predicate: pl.Expr, names: tuple[str, ...], compiled: _Compiled) -> bool:
    """Return whether the translation and Polars say the same on all pairs of edge values and on random ones."""
    random = np.random.default_rng(7)
    columns: dict[str, np.ndarray] = {}
    for position, name in enumerate(names):
        edges = np.array(_EDGES, dtype=np.int64)
        spread = np.tile(edges, len(edges)) if position % 2 else np.repeat(edges, len(edges))
        columns[name] = np.concatenate([spread, random.integers(-100, 100, 1000, dtype=np.int64)])
    try:
        with np.errstate(all="ignore"):
            ours = compiled(columns)
        theirs = pl.DataFrame(columns).select(predicate).to_series()
    except (pl.exceptions.PolarsError, TypeError, ValueError):
        return False
    if theirs.dtype != pl.Boolean or theirs.null_count() or len(theirs) != len(columns[names[0]]):
        return False
    return ours.dtype == np.bool_ and bool(np.array_equal(ours, theirs.to_numpy()))
