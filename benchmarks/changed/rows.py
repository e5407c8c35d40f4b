"""Rows of jobs that change, aggregates over them, and their values from scratch."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

import weir

Row = dict[str, Any]
SCHEMA: dict[str, Any] = {
    "k": str,
    "at": int,
    "num": weir.Nullable(int),
    "x": float,
    "code": int,
    "word": str,
}
#: By name: in a job, and in plain Python.
CONDITIONS: dict[str, tuple[pl.Expr | None, Callable[[Row], bool]]] = {
    "": (None, lambda row: True),
    "bad": (pl.col("code") >= 3, lambda row: row["code"] >= 3),
    "in": (pl.col("code").is_in([0, 1, 4]), lambda row: row["code"] in (0, 1, 4)),
    "abc": (pl.col("word") == "b", lambda row: row["word"] == "b"),
}
_FOLDS: Mapping[str, Callable[[list[Any]], Any]] = {
    "sum": sum,
    "min": min,
    "max": max,
    "mean": lambda values: sum(values) / len(values),
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
}


def call(function: str, column: str = "", condition: str = "", *, renamed_from: str | None = None) -> Any:
    """An aggregate as authors write it."""
    made = getattr(weir, function)(*([column] if column else []), renamed_from=renamed_from)
    where = CONDITIONS[condition][0]
    return made if where is None else made.where(where)


def value(rows: Sequence[Row], function: str, column: str = "", condition: str = "") -> Any:
    """Its value over rows, from scratch."""
    taken = [row for row in rows if CONDITIONS[condition][1](row)]
    if not column:
        return len(taken)
    values = [row[column] for row in taken if row[column] is not None]
    if function == "count":
        return len(values)
    if function in ("count_distinct", "approx_distinct"):
        return len(set(values))
    return _FOLDS[function](values) if values else None


def typed(value: Any, dtype: Any) -> Any:
    """A value of :func:`rows_of` as one of another type that its column is declared with."""
    if dtype is bool:
        return value % 2 > 0
    if dtype is bytes:
        return value.encode()
    if dtype == pl.Datetime("ms"):
        return dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=value)
    return value


def rows_of(seed: int, count: int, *, first_ms: int = 0, keys: int = 5) -> list[Row]:
    """Rows in order of time, one each millisecond."""
    chosen = random.Random(seed)
    return [
        {
            "k": f"k{chosen.randrange(keys)}",
            "at": first_ms + number,
            "num": chosen.choice([None, 1, 2, 3, 40, -7]),
            "x": float(chosen.randrange(100)) / 4,
            "code": chosen.randrange(5),
            "word": chosen.choice("abc"),
        }
        for number in range(count)
    ]
