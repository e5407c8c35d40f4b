"""SQL's OVER: LAG, and aggregates over rows before a row by number and by time; what they must say, row by row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

import weir
from benchmarks.law.cases import Seen
from benchmarks.law.chain_steps import SIZE_MS, windows
from benchmarks.law.running import Build
from benchmarks.law.steps import Result, Step
from weir.dataflow.streams import Stream
from weir.specs.over import OverColumn, OverSpec
from weir.specs.row_order import OrderColumn

BACK_MS, ROWS, LAG = 4_000, 2, 3
#: Some are null.
_ODD = "CASE WHEN v % 5 > 0 THEN v END"
_ROWS_BACK, _BY_TIME = f"ROWS {ROWS} PRECEDING", f"RANGE INTERVAL '{BACK_MS // 1000}' SECOND PRECEDING"


def _odd(row: Seen) -> int | None:
    return row.v if row.v % 5 else None


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _over(order: str, frames: Sequence[str]) -> Build:
    """Rows with a column more for each frame."""

    def made(streams: list[Any], parallelism: int) -> Any:
        stream = streams[0]
        columns = ", ".join(
            f"{what} OVER (PARTITION BY k ORDER BY {order} {frame}) AS c{number}"
            for number, (what, _, frame) in enumerate(part.partition(" OVER ") for part in frames)
        )
        query = f"SELECT k, v, {columns} FROM rows"
        return stream.flow.sql(query, step="over", rows=stream).pass_through("out")

    return made


def _by_spec(streams: list[Any], parallelism: int) -> Stream:
    """The same with so many subtasks, which SQL does not say."""
    columns = (
        OverColumn("c0", "lag", "v", "rows", LAG),
        OverColumn("c1", "count", None, "range", None),
        OverColumn("c2", "sum", "v", "rows", ROWS),
        OverColumn("c3", "max", "v", "range", BACK_MS),
    )
    keyed = streams[0].key_by("k")
    spec = OverSpec(keyed.key_columns, columns, (OrderColumn("to"), OrderColumn("v", ascending=True)))
    told: Stream = keyed.keyed_step("over", spec, parallelism)
    return told.select("out", "k", "v", "c0", "c1", "c2", "c3")


def _of_windows(streams: list[Any], parallelism: int) -> Stream:
    counted = streams[0].key_by("k").window(weir.tumbling(SIZE_MS))
    rows = counted.aggregate("counted", v=weir.sum("v"), parallelism=parallelism)
    keyed = rows.key_by("k")
    columns = (OverColumn("c0", "lag", "v", "rows", 1), OverColumn("c1", "sum", "v", "range", 2 * SIZE_MS))
    told: Stream = keyed.keyed_step("over", OverSpec(keyed.key_columns, columns), parallelism)
    return told.select("out", "k", "v", "c0", "c1")


#: Of the rows of a key up to a row and its peers: their places, and that of the row, what a column says.
Told = Callable[[list[Seen], int, int], Any]


def _by_key(
    order: Callable[[Seen], Any], columns: Sequence[Told]
) -> Callable[[list[list[Seen]]], list[Result]]:
    """The model: rows that are not late, in order."""

    def model(streams: list[list[Seen]]) -> list[Result]:
        by_key: dict[int, list[Seen]] = defaultdict(list)
        for row in streams[0]:
            if not row.late:
                by_key[row.k].append(row)
        said: list[Result] = []
        for key, rows in by_key.items():
            rows.sort(key=order)
            for place, row in enumerate(rows):
                peers = [number for number, other in enumerate(rows) if order(other) == order(row)]
                said.append((key, row.v, *(told(rows, place, peers[-1] + 1) for told in columns), row.at))
        return said

    return model


def _recent(rows: list[Seen], place: int, stop: int) -> list[Seen]:
    return [row for row in rows[:stop] if row.at >= rows[place].at - BACK_MS]


#: What is written, and what it says.
_ALL: tuple[tuple[str, Told], ...] = (
    ("LAG(v) OVER ", lambda rows, at, stop: rows[at - 1].v if at else None),
    (f"LAG(v, {LAG}, -1) OVER ", lambda rows, at, stop: rows[at - LAG].v if at >= LAG else -1),
    ("COUNT(*) OVER ", lambda rows, at, stop: stop),
    (f"SUM({_ODD}) OVER ", lambda rows, at, stop: _sum([_odd(row) for row in rows[:stop]])),
    (
        f"SUM({_ODD}) OVER ROWS UNBOUNDED PRECEDING",
        lambda rows, at, stop: _sum([_odd(row) for row in rows[: at + 1]]),
    ),
    (
        f"SUM({_ODD}) OVER {_ROWS_BACK}",
        lambda rows, at, stop: _sum([_odd(row) for row in rows[max(0, at - ROWS) : at + 1]]),
    ),
    (
        f"MIN(v) OVER {_ROWS_BACK}",
        lambda rows, at, stop: min(row.v for row in rows[max(0, at - ROWS) : at + 1]),
    ),
    (
        f"COUNT({_ODD}) OVER {_BY_TIME}",
        lambda rows, at, stop: sum(row.v % 5 > 0 for row in _recent(rows, at, stop)),
    ),
    (
        f"SUM({_ODD}) OVER {_BY_TIME}",
        lambda rows, at, stop: _sum([_odd(row) for row in _recent(rows, at, stop)]),
    ),
    (f"MAX(v) OVER {_BY_TIME}", lambda rows, at, stop: max(row.v for row in _recent(rows, at, stop))),
    (
        f"AVG(v) OVER {_BY_TIME}",
        lambda rows, at, stop: mean(row.v for row in _recent(rows, at, stop)),
    ),
)
_LAGS, _RUNNING, _BY_ROWS, _RANGES = _ALL[:2], _ALL[2:5], _ALL[5:7], _ALL[7:]


def _by_time(row: Seen) -> int:
    return row.at


def _by_more(row: Seen) -> tuple[int, int, int]:
    return row.at, -row.to, row.v


def _step(
    name: str, order: str, by: Callable[[Seen], Any], columns: Sequence[tuple[str, Told]], **more: Any
) -> Step:
    build = _over(order, [text for text, _ in columns])
    more = {"several": "order", **more}
    return Step(name, build, _by_key(by, [told for _, told in columns]), **more)


_MORE = "at, to DESC, v"
_SPEC: tuple[Told, ...] = (
    lambda rows, at, stop: rows[at - LAG].v if at >= LAG else None,
    lambda rows, at, stop: stop,
    lambda rows, at, stop: sum(row.v for row in rows[max(0, at - ROWS) : at + 1]),
    lambda rows, at, stop: max(row.v for row in _recent(rows, at, stop)),
)
_WINDOWED = _by_key(
    _by_time,
    (
        _ALL[0][1],
        lambda rows, at, stop: sum(row.v for row in rows if 0 <= rows[at].at - row.at <= 2 * SIZE_MS),
    ),
)
STEPS = (
    _step("over: all by time", "at", _by_time, _ALL, own_times=True),
    _step("over: rows by time", "at", _by_time, _BY_ROWS, own_times=True),
    # Rows of one time say the same, whichever came first.
    _step("over: ranges", "at", _by_time, _RANGES, several="rows"),
    _step("over: running values", _MORE, _by_more, _RUNNING),
    _step("over: lags and rows by more columns", _MORE, _by_more, (*_LAGS, *_BY_ROWS)),
    Step("over: of so many subtasks", _by_spec, _by_key(_by_more, _SPEC), several="order"),
    Step(
        "over: of results of windows",
        _of_windows,
        lambda streams: _WINDOWED([[row for row, _ in windows(streams[0], SIZE_MS)]]),
        several="order",
    ),
)
SURE = STEPS
