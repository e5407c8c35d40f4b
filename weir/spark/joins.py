"""Joins of two streams in Spark SQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pat

from weir.rows.records import EVENT_TIME_COLUMN
from weir.spark.modes import Mode
from weir.spark.types import quoted
from weir.specs import JoinBounds, JoinSpec

_SPARK_HOWS = {
    "inner": "inner",
    "left": "left_outer",
    "right": "right_outer",
    "full": "full_outer",
    "anti": "left_anti",
}
_T = quoted(EVENT_TIME_COLUMN)
_TIMES = (f"l.{_T}", f"r.{_T}")


@dataclass(frozen=True)
class PairJoin:
    """A join of the frames ``l`` and ``r``.

    Attributes:
        how: as Spark calls it.
        condition: of a pair.
        columns: name in the result, and its text.
        time: the event time of a row of the result.
        order: the place of it.
        stream_times: the condition of the times of a pair, as streams take it: they forget rows by it.
    """

    how: str
    condition: str
    columns: tuple[tuple[str, str], ...]
    time: str
    order: str
    stream_times: str = ""


def pair_join(spec: JoinSpec, given: Sequence[pa.Schema], mode: Mode) -> PairJoin | None:
    """The join; None: Spark has no equal."""
    bounds = spec.bounds
    if type(spec) is not JoinSpec or spec.how not in _SPARK_HOWS or (bounds is None and spec.how != "inner"):
        return None
    keys = [*zip(spec.key_columns, spec.right_key_columns, strict=True)]
    kinds = [given[0].field(left).type for left, _ in keys]
    if any(pat.is_floating(kind) or pat.is_nested(kind) for kind in kinds) or not _goes(bounds, given):
        return None
    if mode == "streaming" and (
        bounds is None or bounds.lower_ms is None or bounds.upper_ms is None or spec.how == "anti"
    ):
        # Rows are forgotten by times that are known of both sides.
        return None
    condition = [f"l.{quoted(left)} = r.{quoted(right)}" for left, right in keys]
    if mode == "streaming" and spec.how == "full":
        # There Spark takes two nulls for the same key.
        condition += [f"l.{quoted(left)} IS NOT NULL" for left, _ in keys]
    condition += [] if bounds is None else _within(bounds)
    columns = [(left, _key(spec.how, f"l.{quoted(left)}", f"r.{quoted(right)}")) for left, right in keys]
    columns += [(output, f"l.{quoted(name)}") for name, output in spec.left_columns if name in given[0].names]
    columns += [
        (output, f"r.{quoted(name)}") for name, output in spec.right_columns if name in given[1].names
    ]
    times = "" if bounds is None else _stream_times(bounds)
    return PairJoin(
        _SPARK_HOWS[spec.how], " AND ".join(condition), tuple(columns), *_places(spec, bounds), times
    )


def _key(how: str, left: str, right: str) -> str:
    """The key of a row of the result: of the side that every row has, so that only that one is carried on."""
    if how == "full":
        return f"coalesce({left}, {right})"
    return right if how == "right" else left


def _stream_times(bounds: JoinBounds) -> str:
    own, other = ("l", "r") if bounds.side == 0 else ("r", "l")
    found = []
    for sign, added_ms in ((">=", bounds.lower_ms), ("<=", bounds.upper_ms)):
        if added_ms is not None:
            found.append(f"{other}._time {sign} {own}._time + INTERVAL '{added_ms / 1000:.3f}' SECOND")
    return " AND ".join(found)


def _goes(bounds: JoinBounds | None, given: Sequence[pa.Schema]) -> bool:
    if bounds is None:
        return True
    columns = [given[bounds.side].field(name).type for name in bounds.columns(bounds.side)]
    return bounds.slide_ms is None and all(map(pat.is_signed_integer, columns))


def _within(bounds: JoinBounds) -> list[str]:
    """Which times go together."""
    own, other = _TIMES[bounds.side], _TIMES[1 - bounds.side]
    if bounds.window_ms is not None:
        return [f"{_window_start(own, bounds)} = {_window_start(other, bounds)}"]
    found = []
    if bounds.lower_column is not None:
        # It begins at the row's own time at the earliest; of a null there is none.
        column = f"{'lr'[bounds.side]}.{quoted(bounds.lower_column)}"
        found.append(f"{column} IS NOT NULL AND {other} >= greatest({own}, CAST({column} AS BIGINT))")
    elif bounds.lower_ms is not None:
        found.append(f"{other} >= {own} + ({bounds.lower_ms}L)")
    if bounds.upper_column is not None:
        found.append(f"{other} <= CAST({'lr'[bounds.side]}.{quoted(bounds.upper_column)} AS BIGINT)")
    elif bounds.upper_ms is not None:
        found.append(f"{other} <= {own} + ({bounds.upper_ms}L)")
    return found


def _window_start(time: str, bounds: JoinBounds) -> str:
    return f"({time} - pmod({time} - {bounds.offset_ms}L, {bounds.window_ms}L))"


def _places(spec: JoinSpec, bounds: JoinBounds | None) -> tuple[str, str]:
    """Event time and place of a row of the result.

    Of a pair the later time; of a row without a partner the last at which one could have come, or its own.
    """
    left, right = (_last(side, bounds) for side in (0, 1))
    if bounds is not None:
        # A row without a key has no partner at any time, and leaves at once.
        left, right = (
            f"CASE WHEN {' OR '.join(f'{name}.{quoted(key)} IS NULL' for key in keys)} THEN {own} ELSE {last} END"
            for name, keys, own, last in (
                ("l", spec.key_columns, _TIMES[0], left),
                ("r", spec.right_key_columns, _TIMES[1], right),
            )
        )
    if spec.how == "anti":
        return left, "l.`_order`"
    pair = f"greatest({_TIMES[0]}, {_TIMES[1]})"
    order = "greatest(l.`_order`, r.`_order`)"
    time = f"CASE WHEN {_TIMES[1]} IS NULL THEN {left} WHEN {_TIMES[0]} IS NULL THEN {right} ELSE {pair} END"
    return (pair if spec.how == "inner" else time), order


def _last(side: int, bounds: JoinBounds | None) -> str:
    """The last time at which a partner of a row of this side could come, or the row's own."""
    own = _TIMES[side]
    if bounds is None:
        return own
    if bounds.window_ms is not None:
        return f"({_window_start(own, bounds)} + {bounds.window_ms - 1}L)"
    if side == bounds.side:
        if bounds.upper_column is not None:
            column = f"{'lr'[side]}.{quoted(bounds.upper_column)}"
            return f"greatest({own}, CAST({column} AS BIGINT))"
        return f"greatest({own}, {own} + ({bounds.upper_ms or 0}L))"
    if bounds.lower_ms is not None:
        return f"greatest({own}, {own} - ({bounds.lower_ms}L))"
    return own
