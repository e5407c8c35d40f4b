"""The watermark as of each row: how it travels with rows, so that what a job says does not depend on batches.

The hidden column ``_watermark_ms`` (int64) says of each row

- that it is *late*, if it is above the row's event time: it is then the watermark of the row's split as of it, and that
  of all that comes to the step, unless 2^62 is added to it: then other splits or inputs are behind;
- else the watermark of all that comes to the step, as of the row, the row itself included. It never falls from row to
  row, except that late rows do not count, nor do rows that are ahead.
- In a job that brings rows into the order of time (``RowWatermarks.SPLITS``): that it is *ahead*, as other splits or
  inputs are behind its split: it is then the watermark of the row's split as of it, less 2^62.

Batches have the column where the job needs it (:class:`RowWatermarks`). See docs/event-time.md and docs/design/0009.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

import numpy as np
import pyarrow as pa

from weir.rows.records import (
    EVENT_TIME_COLUMN,
    WATERMARK_COLUMN,
    WATERMARK_MAX_MS,
    WATERMARK_MIN_MS,
    int64_column,
    plain_array,
    watermarks_of,
)
from weir.rows.side_outputs import SideRows

#: Added to the watermark of a late row's split where that is not the watermark of all. Times are below 2^61.
_BEHIND = 1 << 62
_HIGHEST_TIME = 1 << 61
#: Watermarks of rows' own channels, while rows wait in front of a step (``weir.operators.time_order``).
AS_OF_COLUMN = "_as_of_ms"
_FIELD = pa.field(WATERMARK_COLUMN, pa.int64(), nullable=False)


class RowWatermarks(IntEnum):
    """Which batches of a job have the column."""

    #: No step goes by event time.
    NONE = 0
    #: Those with late rows: windows and joins need to know of no others.
    LATE = 1
    #: All: timers, TTLs and triggers by event time count between any two rows.
    ALL = 2
    #: All, and rows whose split is ahead of others say so: some step takes rows in the order of time.
    SPLITS = 3


class TimeCuts(IntFlag):
    """Before which rows a batch is cut, so that an operator is told of the watermark: see ``Operator.time_cuts``."""

    NONE = 0
    #: Late rows: they find done what was due before them.
    LATE = 1
    #: Any rows as of which something is due.
    DUE = 2
    #: Each late row of which a row of the same key comes before: each has an effect of its own.
    EACH_LATE = 4
    #: What is made before these rows, or of them, is other if the watermark stands still.
    BY_MOMENT = DUE | EACH_LATE


def with_column(batch: pa.RecordBatch, watermarks_ms: np.ndarray) -> pa.RecordBatch:
    """The batch with this column, in place of the one that it has."""
    index = batch.schema.get_field_index(WATERMARK_COLUMN)
    column = plain_array(np.ascontiguousarray(watermarks_ms))
    if index < 0:
        return batch.append_column(_FIELD, column)
    return batch.set_column(index, _FIELD, column)


def without_column(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch without it; the very batch if it has none."""
    index = batch.schema.get_field_index(WATERMARK_COLUMN)
    return batch if index < 0 else batch.remove_column(index)


def of_split(
    times_ms: np.ndarray, highest_ms: np.ndarray, bound_ms: int, others_ms: int, wanted: RowWatermarks
) -> np.ndarray | None:
    """The column for rows of one split; called by sources, and by steps that assign event times.

    Args:
        times_ms: event times; int64, shape (rows,).
        highest_ms: the highest event time of the split up to each row; int64, shape (rows,).
        bound_ms: how far the watermark stays behind that.
        others_ms: the lowest watermark of the other splits that the subtask reads or will read.
        wanted: of the job.

    Returns:
        None: the batch needs no column.
    """
    if wanted is RowWatermarks.NONE or not len(times_ms):
        return None
    if wanted is RowWatermarks.LATE and int((highest_ms - times_ms).max()) <= bound_ms:
        # As nearly always; before the first row this may pass 64 bits, and then looks like late rows.
        return None
    own_ms = highest_ms - bound_ms
    # Before the first row there is no time that could be subtracted from.
    own_ms = (
        np.where(highest_ms < WATERMARK_MIN_MS + bound_ms, WATERMARK_MIN_MS, own_ms) if bound_ms else own_ms
    )
    late = own_ms > times_ms
    if wanted is RowWatermarks.LATE and not late.any():
        return None
    column = _column(late, own_ms, np.minimum(own_ms, others_ms))
    return _with_ahead(column, late, own_ms, others_ms) if wanted is RowWatermarks.SPLITS else column


def _column(late: np.ndarray, split_ms: np.ndarray, all_ms: np.ndarray) -> np.ndarray:
    """The column, from which rows are late, the watermark of each one's split, and that of all."""
    return np.where(late, np.where(all_ms < split_ms, split_ms + _BEHIND, split_ms), all_ms)


def _with_ahead(
    column: np.ndarray, late: np.ndarray, split_ms: np.ndarray, all_ms: np.ndarray | int
) -> np.ndarray:
    """The column, where the rows say so whose split is ahead of ``all_ms``."""
    return np.where(~late & (split_ms > all_ms), split_ms - _BEHIND, column)


def _are_ahead(column: np.ndarray) -> np.ndarray:
    return (column < -_HIGHEST_TIME) & (column > WATERMARK_MIN_MS + _HIGHEST_TIME)


def has_rows_ahead(batch: pa.RecordBatch) -> bool:
    """Whether other splits or inputs are behind that of a row."""
    column = watermarks_of(batch)
    return column is not None and bool(_are_ahead(column).any())


def _own_ms(column: np.ndarray, late: np.ndarray, running_ms: np.ndarray) -> np.ndarray:
    """The watermark of the split of each row as of it; ``running_ms``: of rows that do not say what it is."""
    ahead_ms = np.where(_are_ahead(column), column + _BEHIND, running_ms)
    return np.where(late, of_splits(column), ahead_ms)


def late_ms(batch: pa.RecordBatch, times_ms: np.ndarray | None = None) -> np.ndarray | None:
    """Of late rows the watermark of their split, of others the lowest time; None: no row is late.

    int64, shape (rows,). ``times_ms``: event times, if they are at hand.
    """
    column = watermarks_of(batch)
    if column is None:
        return None
    times_ms = int64_column(batch, EVENT_TIME_COLUMN) if times_ms is None else times_ms
    late = column > times_ms
    return np.where(late, of_splits(column), WATERMARK_MIN_MS) if late.any() else None


def of_splits(column: np.ndarray) -> np.ndarray:
    """The watermarks of the splits of late rows, from the column; of other rows nothing."""
    return np.where(column > _HIGHEST_TIME, column - _BEHIND, column)


def highest_ms(column: np.ndarray) -> int:
    """The highest watermark of all that comes to a step that rows tell; the lowest time if none of them tells it."""
    if len(column) and -_HIGHEST_TIME <= (highest := int(column.max())) <= _HIGHEST_TIME:
        # Mostly: rows that other splits are behind of are the exception.
        return highest
    told = column[(column <= _HIGHEST_TIME) & (column >= -_HIGHEST_TIME)]
    return int(told.max()) if len(told) else WATERMARK_MIN_MS


def as_of(
    batch: pa.RecordBatch, column: np.ndarray, known_ms: int = WATERMARK_MIN_MS
) -> tuple[np.ndarray, np.ndarray]:
    """Which rows are late (bool), and the watermark as of each row (int64); ``known_ms``: what it was before."""
    late = column > int64_column(batch, EVENT_TIME_COLUMN)
    told_ms = np.where((column > _HIGHEST_TIME) | (column < -_HIGHEST_TIME), WATERMARK_MIN_MS, column)
    return late, np.maximum(np.maximum.accumulate(told_ms), known_ms)


def combined(
    batch: pa.RecordBatch,
    others_ms: int,
    known_ms: int,
    cap_ms: int = WATERMARK_MAX_MS,
    *,
    tells_ahead: bool = False,
) -> tuple[pa.RecordBatch, int]:
    """Rows of one channel as they come to a subtask: the column is of all its inputs then.

    Args:
        batch: has the column.
        others_ms: the lowest watermark of the other inputs that count.
        known_ms: the combined watermark before.
        cap_ms: it stands still here, because rows are parked.
        tells_ahead: rows are to say where the inputs are behind their split (``RowWatermarks.SPLITS``).

    Returns:
        The rows, and the watermark of the channel after them.
    """
    column = watermarks_of(batch)
    assert column is not None
    late, own_ms = as_of(batch, column)
    last_ms = int(own_ms[-1])
    here_ms = np.minimum(np.maximum(np.minimum(own_ms, others_ms), known_ms), cap_ms)
    made = _column(late, np.maximum(of_splits(column), here_ms), here_ms)
    if tells_ahead:
        made = _with_ahead(made, late, _own_ms(column, late, own_ms), here_ms)
    return with_column(batch, made), last_ms


def of_channel(
    batch: pa.RecordBatch, known_ms: int, *, sorts_times: bool = False
) -> tuple[pa.RecordBatch, int]:
    """Rows of one channel, with the watermark of their split as of each in a column of its own (``AS_OF_COLUMN``).

    Args:
        batch: as it comes from the channel; with the column or without.
        known_ms: the watermark of the channel before.
        sorts_times: the column has the watermark from which on no row of an earlier time comes: 1 ms above the event
            time, and above the watermark of the split where the row is late.

    Returns:
        The rows, and the watermark of the channel after them.
    """
    column = watermarks_of(batch)
    if column is None or not batch.num_rows:
        own_ms, channel_ms = np.full(batch.num_rows, known_ms), known_ms
    else:
        late, running_ms = as_of(batch, column, known_ms)
        own_ms, channel_ms = _own_ms(column, late, running_ms), int(running_ms[-1])
    if sorts_times:
        own_ms = np.maximum(own_ms, int64_column(batch, EVENT_TIME_COLUMN)) + 1
    return batch.append_column(AS_OF_COLUMN, pa.array(own_ms)), channel_ms


def released(batch: pa.RecordBatch, known_ms: int, *, sorts_times: bool = False) -> pa.RecordBatch:
    """Rows of :func:`of_channel` in the order of their watermarks, to which all inputs have come: as of these.

    ``known_ms``: the combined watermark before. ``sorts_times``: as there; rows are as of their own times.
    """
    index = batch.schema.get_field_index(AS_OF_COLUMN)
    as_of_ms = batch.column(index).to_numpy(zero_copy_only=True)
    here_ms = np.maximum(as_of_ms - 1 if sorts_times else as_of_ms, known_ms)
    batch = batch.remove_column(index)
    column = watermarks_of(batch)
    if column is None:
        return batch
    late = column > int64_column(batch, EVENT_TIME_COLUMN)
    return with_column(batch, _column(late, np.maximum(of_splits(column), here_ms), here_ms))


def alike(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The batch in parts, in order: rows of one event time are late as of the same watermark in a part, or all not.

    So :func:`carried` finds which of the rows that a step made of a part are late.
    """
    starts = [0, *alike_borders(batch)]
    if len(starts) == 1:
        return [batch]
    stops = [*starts[1:], batch.num_rows]
    return [batch.slice(start, stop - start) for start, stop in zip(starts, stops, strict=True)]


def alike_borders(batch: pa.RecordBatch) -> list[int]:
    """Where the parts of :func:`alike` begin, but the first one; ascending."""
    column = watermarks_of(batch)
    if column is None:
        return []
    times_ms = int64_column(batch, EVENT_TIME_COLUMN)
    apart = (column > times_ms) | _are_ahead(column)
    if not apart.any():
        return []
    told_ms = np.where(apart, column, WATERMARK_MIN_MS)
    rows = np.flatnonzero(np.isin(times_ms, times_ms[apart]))
    known: dict[int, int] = {}
    borders = []
    for row, time_ms, at_ms in zip(
        rows.tolist(), times_ms[rows].tolist(), told_ms[rows].tolist(), strict=True
    ):
        if known.setdefault(time_ms, at_ms) != at_ms:
            borders.append(row)
            known = {time_ms: at_ms}
    return borders


def standing_still(batch: pa.RecordBatch, at_ms: int, *, tells_ahead: bool = False) -> pa.RecordBatch:
    """The batch, as of whose rows the watermark is not above ``at_ms``; late ones stay late.

    ``tells_ahead``: as of :func:`combined`.
    """
    if watermarks_of(batch) is None:
        return batch
    return combined(batch, WATERMARK_MAX_MS, WATERMARK_MIN_MS, at_ms, tells_ahead=tells_ahead)[0]


def carried(given: pa.RecordBatch, made: pa.RecordBatch) -> pa.RecordBatch:
    """What a step made of rows that have the column, with it: each row has that of the rows of its event time.

    These are late, or ahead, or not, together: see :func:`alike`.

    A row with another time is as of the first row, and not late: what was made of rows before the last one may follow.
    """
    column = watermarks_of(given)
    if column is None or watermarks_of(made) is not None or not made.num_rows:
        return made
    before, after = int64_column(given, EVENT_TIME_COLUMN), int64_column(made, EVENT_TIME_COLUMN)
    if len(before) == len(after) and np.array_equal(before, after):
        return with_column(made, column)
    order = np.argsort(before, kind="stable")
    at = np.minimum(np.searchsorted(before[order], after), len(before) - 1)
    found = order[at]
    _, own_ms = as_of(given, column)
    same = before[found] == after
    return with_column(made, np.where(same, column[found], np.minimum(own_ms[0], after)))


def made_of(given: pa.RecordBatch, rows: np.ndarray, made: pa.RecordBatch) -> pa.RecordBatch:
    """What a step made of rows that have the column, each of the row of that number, with it.

    It is late where the row was, unless it has a time that is not.
    """
    column = watermarks_of(given)
    if column is None:
        return made
    times_ms = int64_column(made, EVENT_TIME_COLUMN)
    late, own_ms = as_of(given, column)
    split_ms = column[rows]
    late = late[rows] & (of_splits(split_ms) > times_ms)
    own = late | _are_ahead(split_ms)
    return with_column(made, np.where(own, split_ms, np.minimum(own_ms[rows], times_ms)))


def told_again(made: pa.RecordBatch, told_ms: int) -> pa.RecordBatch:
    """Results that late rows have changed, with the column: they are late, too, as of the watermark at these rows.

    So a step after it finds done what was due before them, however rows are cut into batches.

    Args:
        made: what a step made of rows, as of :func:`carried`.
        told_ms: the watermark that the step was told of. Nothing is due below it but what it tells again.
    """
    column = watermarks_of(made)
    if column is None:
        return made
    times_ms = int64_column(made, EVENT_TIME_COLUMN)
    again = (column <= times_ms) & (times_ms < told_ms)
    return with_column(made, np.where(again, told_ms, column)) if again.any() else made


def rows_before(keys: np.ndarray) -> np.ndarray:
    """Of each row the number of the last one before it that has the same key; -1: there is none; int64."""
    order = np.argsort(keys, kind="stable")
    before = np.full(len(keys), -1)
    same = keys[order][1:] == keys[order][:-1]
    before[order[1:][same]] = order[:-1][same]
    return before


def carried_out(given: pa.RecordBatch, made: pa.RecordBatch | SideRows) -> pa.RecordBatch | SideRows:
    """As :func:`carried`, of what an operator yields."""
    if isinstance(made, SideRows):
        return SideRows(made.output, carried(given, made.rows))
    return carried(given, made)
