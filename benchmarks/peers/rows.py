"""Results of all systems in one form, and whether they are equal."""

from __future__ import annotations

import polars as pl

from benchmarks.peers.texts import Query

#: Greatest difference of two numbers with a point, of the greater: the order of additions differs.
_RELATIVE = 1e-12


def as_told(query: Query, found: pl.DataFrame) -> pl.DataFrame:
    """The columns of a result, in the query's order: BIGINT and times as Int64 (ms since 1970).

    Args:
        query: whose result it is.
        found: a row for each row of the result; times are Int64, texts of ISO 8601, or of Polars' types.
    """
    made = []
    for name, kind in query.columns.items():
        column = pl.col(name)
        if kind in ("TIME", "WINDOW"):
            made.append(_ms(column, found.schema[name]).alias(name))
        else:
            dtype = {"BIGINT": pl.Int64, "DOUBLE": pl.Float64, "STRING": pl.String}[kind]
            made.append(column.cast(dtype))
    return found.select(made)


def _ms(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    if dtype == pl.String:
        # Of Flink: '2015-07-15 00:00:00', with a fraction if there is one, and 'Z' where the type has a zone.
        text = column.str.strip_chars_end("Z").str.replace(" ", "T")
        return text.str.to_datetime(time_unit="ms", strict=True).dt.epoch("ms")
    if dtype.base_type() == pl.Datetime:
        return column.dt.epoch("ms")
    return column.cast(pl.Int64)


def difference(found: pl.DataFrame, expected: pl.DataFrame) -> str:
    """How two results differ, in words; empty: they have the same rows, as often each."""
    if found.height != expected.height:
        return f"{found.height:,} rows, not {expected.height:,}"
    exact = [name for name, dtype in expected.schema.items() if not dtype.is_float()]
    order = [*exact, *(name for name in expected.columns if name not in exact)]
    one, other = found.select(order).sort(order), expected.select(order).sort(order)
    wrong = pl.lit(value=False)
    for name in order:
        mine, theirs = pl.col(name), pl.col(f"{name}_expected")
        if name in exact:
            wrong = wrong | mine.ne_missing(theirs)
        else:
            limit = pl.max_horizontal(mine.abs(), theirs.abs()) * _RELATIVE
            wrong = wrong | ((mine - theirs).abs() > limit) | (mine.is_null() != theirs.is_null())
    both = pl.concat([one, other.rename({name: f"{name}_expected" for name in order})], how="horizontal")
    off = both.filter(wrong)
    return f"{off.height:,} rows differ, the first is {off.row(0, named=True)}" if off.height else ""


def told_by_then(found: pl.DataFrame, expected: pl.DataFrame, time: str) -> tuple[pl.DataFrame, int]:
    """The expected rows up to the last time that a result has, and how many later ones there are.

    For Spark, whose streams do not tell the last windows of a source that ends. A result without any row is compared
    with all rows: it is no result that ends early.
    """
    last = found[time].max()
    if last is None:
        return expected, 0
    kept = expected.filter(pl.col(time) <= last)
    return kept, expected.height - kept.height
