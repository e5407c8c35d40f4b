"""Data frames of steps that are Spark's own: here Spark is called, and nothing is decided.

In streams whose steps with state are Weir's there are marks among the rows (``weir.spark.marks``), with the columns
``marks``; rows have none in them. A step hands them on as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from weir.rows.records import EVENT_TIME_COLUMN
from weir.spark.marks import MARK_COLUMN, OF_COLUMN
from weir.spark.native import Columns, Exploded, Kept, PairJoin, Same
from weir.spark.task_steps import ORDER_COLUMN
from weir.spark.types import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TIME, _ORDER = quoted(EVENT_TIME_COLUMN), quoted(ORDER_COLUMN)
#: Columns of a mark; of rows they are null.
MARKS = (OF_COLUMN, MARK_COLUMN)


def by_row(
    frames: list[DataFrame], made: Kept | Columns | Exploded | Same, schema: pa.Schema, *, marked: bool
) -> DataFrame:
    """Return the rows that a step without state makes.

    Args:
        frames: of its inputs.
        made: the step.
        schema: user columns of its output.
        marked: there are marks among the rows.
    """
    hidden = (_TIME, _ORDER, *(MARKS if marked else ()))
    names = [quoted(name) for name in schema.names]
    first, *others = frames
    match made:
        case Kept(predicate):
            return first.where(f"{OF_COLUMN} IS NOT NULL OR ({predicate})" if marked else predicate)
        case Columns(columns):
            return first.selectExpr(*(f"{text} AS {quoted(name)}" for name, text in columns), *hidden)
        case Exploded(column, keep_empty):
            call, name = "explode_outer" if keep_empty else "explode", quoted(column)
            lists = f"CASE WHEN {OF_COLUMN} IS NULL THEN {name} ELSE array(NULL) END" if marked else name
            texts = [f"{call}({lists}) AS {name}" if each == name else each for each in names]
            return first.selectExpr(*texts, *hidden)
        case Same():
            united = first.selectExpr(*names, *hidden)
            for other in others:
                united = united.unionAll(other.selectExpr(*names, *hidden))
            return united


def paired(frames: list[DataFrame], made: PairJoin, times: str) -> DataFrame:
    """Return the rows of a join; ``times``: a condition of the times of a pair, besides."""
    from pyspark.sql.functions import expr

    left, right = frames[0].alias("l"), frames[1].alias("r")
    condition = f"{made.condition} AND {times}" if times else made.condition
    joined = left.join(right, expr(condition), made.how)
    return joined.selectExpr(
        *(f"{text} AS {quoted(name)}" for name, text in made.columns),
        f"{made.time} AS {_TIME}",
        f"{made.order} AS {_ORDER}",
    )
