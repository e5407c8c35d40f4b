"""Rows that leave a step because a watermark came: as of which moment each is, and in which order they go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from weir.rows.records import EVENT_TIME_COLUMN, int64_column, watermarks_of
from weir.rows.row_watermarks import standing_still, with_column
from weir.rows.side_outputs import SideRows

#: Of rows that leave because of one watermark.
_ORDERED_BYTES = 64 << 20


def fired(made: pa.RecordBatch, until_ms: int) -> pa.RecordBatch:
    """What left because a watermark came, with the column: each row as of its own time, and not late.

    So it makes no difference over how many watermarks time has come there.

    Args:
        made: the rows.
        until_ms: the watermark is not above this when they leave.
    """
    if not made.num_rows or watermarks_of(made) is not None:
        return made
    return with_column(made, np.minimum(int64_column(made, EVENT_TIME_COLUMN), until_ms))


def fired_out(made: pa.RecordBatch | SideRows, until_ms: int) -> pa.RecordBatch | SideRows:
    """As :func:`fired`, of what an operator yields."""
    return (
        SideRows(made.output, fired(made.rows, until_ms))
        if isinstance(made, SideRows)
        else fired(made, until_ms)
    )


def behind(made: pa.RecordBatch | SideRows, as_of_ms: int) -> pa.RecordBatch | SideRows:
    """What a timer made that one of a later time registered, with the column: as of the same moment as that."""
    if isinstance(made, SideRows):
        rows = behind(made.rows, as_of_ms)
        assert isinstance(rows, pa.RecordBatch)
        return SideRows(made.output, rows)
    return with_column(made, np.full(made.num_rows, as_of_ms))


def rung(made: pa.RecordBatch | SideRows, before_ms: int, *, late: bool) -> pa.RecordBatch | SideRows:
    """What timers made, with the column: each row as of the moment before its own time.

    Args:
        made: the rows.
        before_ms: the watermark as of the row before.
        late: these timers were registered at or before that: so rows of such times are late.

    Those of :func:`behind` stay as they are, unless they are late.
    """
    if isinstance(made, SideRows):
        rows = rung(made.rows, before_ms, late=late)
        assert isinstance(rows, pa.RecordBatch)
        return SideRows(made.output, rows)
    if not made.num_rows:
        return made
    own_ms = watermarks_of(made)
    if own_ms is not None:
        return with_column(made, np.maximum(own_ms, before_ms)) if late else made
    times_ms = int64_column(made, EVENT_TIME_COLUMN)
    earlier_ms = np.full(len(times_ms), before_ms) if late else times_ms
    return with_column(made, np.where(times_ms > before_ms, times_ms - 1, earlier_ms))


def fired_in_order(outputs: Iterable[Any], until_ms: int) -> Iterator[Any]:
    """As :func:`fired`, of all that an operator yields when a watermark comes, in the order of time.

    Within a batch that has the column, a row never comes before one that it came after: it may be of a timer that the
    other one registered late. So many bytes at a time are brought into order that no more need be in memory
    (``_ORDERED_BYTES``).
    """
    waiting, turns_ms, size_bytes = list[pa.RecordBatch](), list[np.ndarray](), 0
    for made in outputs:
        if isinstance(made, SideRows):
            yield fired_out(made, until_ms)
            continue
        if not isinstance(made, pa.RecordBatch):
            # What it says holds for all that was yielded before.
            yield from _ordered(waiting, turns_ms)
            waiting, turns_ms, size_bytes = [], [], 0
            yield made
            continue
        knows_order = watermarks_of(made) is not None
        column = watermarks_of(made := fired(made, until_ms))
        if column is None:
            # It has no rows.
            continue
        waiting.append(made)
        turns_ms.append(np.maximum.accumulate(column) if knows_order else column)
        size_bytes += made.nbytes
        if size_bytes >= _ORDERED_BYTES:
            yield from _ordered(waiting, turns_ms)
            waiting, turns_ms, size_bytes = [], [], 0
    yield from _ordered(waiting, turns_ms)


def woven(
    outputs: Iterable[pa.RecordBatch],
    given_ms: int,
    fire: Callable[[], Iterable[pa.RecordBatch]],
    until_ms: int,
) -> Iterator[pa.RecordBatch]:
    """What a step made of rows, which has the column, and what leaves because of the watermark as of the last of them.

    Each result of the latter comes before those of the former as of which it was due. Where there are so many bytes
    that they cannot wait (``_ORDERED_BYTES``), time stands still until all have left.

    Args:
        outputs: of rows.
        given_ms: the watermark that the step was told of.
        fire: tells it of the other one; called when all outputs were made.
        until_ms: that other one.
    """
    waiting, size_bytes = list[pa.RecordBatch](), 0
    for made in outputs:
        waiting.append(made)
        size_bytes += made.nbytes
        if size_bytes >= _ORDERED_BYTES:
            yield from (standing_still(batch, given_ms) for batch in waiting)
            waiting, size_bytes = [], 0
    waiting += [fired(made, until_ms) for made in fire() if made.num_rows]
    yield from _ordered(
        waiting, [column for batch in waiting if (column := watermarks_of(batch)) is not None]
    )


def told_in_order(outputs: Iterable[Any]) -> Iterator[Any]:
    """What an operator yields when a watermark comes, in the order of time, where rows are to have no column.

    So a step that minds the order of rows of several keys does not see over how many watermarks time has come there.
    What has the column, and side rows, stay where they are.
    """
    waiting, turns_ms, size_bytes = list[pa.RecordBatch](), list[np.ndarray](), 0
    for made in outputs:
        is_plain = isinstance(made, pa.RecordBatch) and watermarks_of(made) is None
        if is_plain and not made.num_rows:
            continue
        if is_plain:
            waiting.append(made)
            turns_ms.append(int64_column(made, EVENT_TIME_COLUMN))
            size_bytes += made.nbytes
        if not is_plain or size_bytes >= _ORDERED_BYTES:
            yield from _ordered(waiting, turns_ms)
            waiting, turns_ms, size_bytes = [], [], 0
        if not is_plain:
            yield made
    yield from _ordered(waiting, turns_ms)


def in_order(made: pa.RecordBatch | SideRows) -> pa.RecordBatch | SideRows:
    """Rows with the column, in its order."""
    if isinstance(made, SideRows) or (column := watermarks_of(made)) is None:
        return made
    return made if not (column[1:] < column[:-1]).any() else _ordered([made], [column])[0]


def _ordered(batches: list[pa.RecordBatch], turns_ms: list[np.ndarray]) -> list[pa.RecordBatch]:
    """Return rows in the order of their turns, in batches that are no larger than those that were given."""
    ordered = by_turn(batches, turns_ms)
    if ordered is batches:
        return batches
    size = max(batch.num_rows for batch in batches)
    return [rows.slice(first, size) for rows in ordered for first in range(0, rows.num_rows, size)]


def by_turn(batches: list[pa.RecordBatch], turns: Sequence[np.ndarray]) -> list[pa.RecordBatch]:
    """Return rows in the order of their turns, those of one turn as they came; the very batches if they lie so.

    Args:
        batches: rows of one schema.
        turns: by batch, of each of its rows; int64.
    """
    if not batches:
        return batches
    turn = turns[0] if len(turns) == 1 else np.concatenate(turns)
    if not (turn[1:] < turn[:-1]).any():
        return batches
    whole = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    return [whole.take(pa.array(np.argsort(turn, kind="stable")))]
