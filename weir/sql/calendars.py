"""Windows by the calendar of a time zone: days, weeks and months, whose lengths differ.

The rows of a window get its last millisecond as their event time, which is never before their own: the watermark of the
stream stays right. So a window of one millisecond has the rows of one day.
"""

from __future__ import annotations

import functools

import polars as pl
import pyarrow as pa
from sqlglot import exp

from weir.rows.records import EVENT_TIME_COLUMN, INGEST_TIME_COLUMN, int64_column, user_columns
from weir.sql.context import Context
from weir.sql.errors import Unplaced, at
from weir.sql.intervals import interval_parts
from weir.sql.relations import Relation
from weir.sql.zones import zone_of

#: Units of a calendar, as Polars calls them.
_UNITS = {"DAY": "1d", "WEEK": "1w", "MONTH": "1mo", "QUARTER": "1q", "YEAR": "1y"}
#: Columns of the stream: bounds of the window of a row, in ms.
CALENDAR_BOUNDS = ("_calendar_start", "_calendar_end")
#: Where the clock goes forward at midnight, a day begins so much later; a zone may leave a day out.
_LATER = ("30m", "1h", "2h", "1d")


def in_calendar(
    relation: Relation, length: exp.Expr, zone: exp.Expr, node: exp.Expr, context: Context
) -> tuple[Relation, str]:
    """The rows with the bounds of their window, at its last millisecond; and what tells these windows from others.

    Args:
        relation: rows with their event times.
        length: ``INTERVAL '1' DAY``.
        zone: ``'Europe/Berlin'``.
        node: place of messages.
        context: of the query.

    Raises:
        Unplaced: there is no such zone, or the length is no unit of a calendar.
    """
    name = zone_of(zone, node)
    count, unit = interval_parts(length) if isinstance(length, exp.Interval) else (0, "")
    if count != 1 or unit not in _UNITS:
        raise Unplaced(
            f"windows in a time zone are INTERVAL '1' of {', '.join(_UNITS)}; for others leave the zone out",
            length,
        )
    stream = relation.stream
    fields = [pa.field(each, pa.int64(), nullable=False) for each in CALENDAR_BOUNDS]
    if stream.schema.get_field_index(CALENDAR_BOUNDS[0]) >= 0:
        raise Unplaced("these rows are in windows of a calendar already; group them first", node)
    function = functools.partial(calendar_rows, unit=_UNITS[unit], zone=name)
    with at(node):
        made = stream.map_batches(
            context.steps.step("calendar"), function, pa.schema([*stream.schema, *fields])
        )
    return Relation(made, relation.columns, relation.windowed), f"{unit} {name}"


def calendar_rows(batch: pa.RecordBatch, *, unit: str, zone: str) -> pa.RecordBatch:
    """Rows with the bounds of their window, and its last millisecond as their time; see ``map_batches``."""
    names = user_columns(batch.schema)
    starts, ends = calendar_bounds(pl.Series(int64_column(batch, EVENT_TIME_COLUMN)), unit, zone)
    columns = [*(batch.column(name) for name in names), starts.to_arrow(), ends.to_arrow()]
    fields = [*(batch.schema.field(name) for name in names)]
    fields += [pa.field(name, pa.int64(), nullable=False) for name in CALENDAR_BOUNDS]
    columns += [(ends - 1).to_arrow(), batch.column(INGEST_TIME_COLUMN)]
    fields += [batch.schema.field(EVENT_TIME_COLUMN), batch.schema.field(INGEST_TIME_COLUMN)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def calendar_bounds(times_ms: pl.Series, unit: str, zone: str) -> tuple[pl.Series, pl.Series]:
    """Beginnings and ends of the windows of some times; ms since 1970, int64.

    A window begins with the first moment of its first date in the zone, and ends where the next one begins.

    Args:
        times_ms: ms since 1970.
        unit: as Polars calls it, such as ``1d``.
        zone: name of the time zone.
    """
    date = pl.from_epoch("t", "ms").dt.replace_time_zone("UTC").dt.convert_time_zone(zone).dt.date()
    # Few different dates: bounds are computed once for each.
    dates = pl.DataFrame({"t": times_ms}).select(date.alias("date"))
    first = pl.col("date").dt.truncate(unit)
    following = first.dt.offset_by(unit)
    bounds = dates.unique().with_columns(
        start=_moment(first, zone),
        end=_moment(following, zone),
        next_end=_moment(following.dt.offset_by(unit), zone),
    )
    found = dates.with_columns(times_ms.alias("t")).join(bounds, on="date", how="left", maintain_order="left")
    # Where clocks go back over midnight, the end of a date comes again when the next date has begun.
    is_over = pl.col("t") >= pl.col("end")
    found = found.select(
        start=pl.when(is_over).then("end").otherwise("start"),
        end=pl.when(is_over).then("next_end").otherwise("end"),
    )
    return found["start"], found["end"]


def _moment(date: pl.Expr, zone: str) -> pl.Expr:
    """The first moment of a date in a zone, ms since 1970."""
    midnight = date.cast(pl.Datetime("ms"))
    tries = [midnight, *(midnight.dt.offset_by(each) for each in _LATER)]
    return pl.coalesce(
        [
            each.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null").dt.epoch("ms")
            for each in tries
        ]
    )
