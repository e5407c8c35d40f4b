"""Steps that are Spark's own, described as text of Spark SQL; ``frames`` makes data frames of the descriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import polars as pl
import pyarrow as pa

from weir.author.watermarks import DEFAULT_STRATEGY, EVENT_TIME_MS_MAX
from weir.plan.graph import Node
from weir.spark.expressions import translated
from weir.spark.groups import Group, final_group, window_group
from weir.spark.joins import PairJoin, pair_join
from weir.spark.modes import Mode
from weir.spark.readers import Reading, reading
from weir.spark.types import quoted
from weir.spark.writers import Writing, writing
from weir.specs import (
    AssignEventTimeSpec,
    BusySpec,
    CollectSpec,
    FilterSpec,
    JoinSpec,
    KeyedAggregateSpec,
    PassThroughSpec,
    SelectSpec,
    SinkSpec,
    SourceSpec,
    UnionSpec,
    WindowAggregateSpec,
    WithColumnsSpec,
)
from weir.specs.columns import ExplodeSpec, RenameSpec


@dataclass(frozen=True)
class Kept:
    """Rows for which a text is true."""

    predicate: str


@dataclass(frozen=True)
class Columns:
    """Columns: name, and the text of which each is made."""

    made: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Exploded:
    """A row of each element of a column of lists."""

    column: str
    keep_empty: bool


@dataclass(frozen=True)
class Timed:
    """Rows with another event time; bad ones are put aside.

    Attributes:
        time: whole number, ms since 1970.
        future_ms_max: later times than the clock and this are bad; None: none is.
    """

    time: str
    future_ms_max: int | None


@dataclass(frozen=True)
class Same:
    """The rows of the input, or of all inputs."""


Native: TypeAlias = Kept | Columns | Exploded | Timed | Same | Group | PairJoin | Reading | Writing
#: Times that no row may have, as ``weir.operators.event_times`` has it.
TIME_MS_MAX = EVENT_TIME_MS_MAX


def native_step(node: Node, given: Sequence[pa.Schema], mode: Mode) -> Native | None:
    """How Spark itself runs a step so that its rows are the same; None: it has no equal."""
    spec = node.spec
    if isinstance(spec, SourceSpec):
        return reading(spec)
    if isinstance(spec, CollectSpec):
        return Same()
    if isinstance(spec, SinkSpec):
        return writing(spec, given[0])
    if isinstance(spec, JoinSpec):
        return pair_join(spec, given, mode)
    if isinstance(spec, WindowAggregateSpec):
        return window_group(spec, given[0], mode)
    if isinstance(spec, KeyedAggregateSpec):
        return final_group(spec, given[0], mode)
    return _by_row(node, given[0])


def _by_row(node: Node, given: pa.Schema) -> Native | None:
    spec = node.spec
    if isinstance(spec, PassThroughSpec | UnionSpec) or (isinstance(spec, BusySpec) and not spec.load_ms):
        return Same()
    if isinstance(spec, FilterSpec):
        text = translated(spec.predicate, given)
        return None if text is None else Kept(text)
    if isinstance(spec, WithColumnsSpec):
        return _columns(node, given, {name: name for name in given.names}, spec.expressions)
    if isinstance(spec, SelectSpec):
        plain = {item: item for item in spec.columns if isinstance(item, str)}
        return _columns(node, given, plain, spec.expressions)
    if isinstance(spec, RenameSpec):
        new = dict(spec.names)
        return _columns(node, given, {new.get(name, name): name for name in given.names}, ())
    if isinstance(spec, ExplodeSpec):
        return Exploded(spec.column, spec.keep_empty)
    if isinstance(spec, AssignEventTimeSpec):
        text = translated(spec.event_time, given)
        strategy = spec.watermark or DEFAULT_STRATEGY
        if text is None or strategy.generator is not None:
            return None
        return Timed(text, strategy.future_ms_max)
    return None


def _columns(
    node: Node, given: pa.Schema, plain: Mapping[str, str], expressions: Sequence[pl.Expr]
) -> Columns | None:
    """The columns of a step, of which those of the expressions are computed."""
    texts = {name: quoted(before) for name, before in plain.items()}
    for expression in expressions:
        text = translated(expression, given)
        if text is None:
            return None
        texts[expression.meta.output_name()] = text
    return Columns(tuple((name, texts[name]) for name in node.schema.names))


__all__ = [
    "TIME_MS_MAX",
    "Columns",
    "Exploded",
    "Group",
    "Kept",
    "Native",
    "PairJoin",
    "Reading",
    "Same",
    "Timed",
    "Writing",
    "native_step",
]
