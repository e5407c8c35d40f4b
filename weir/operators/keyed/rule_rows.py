"""Calls an author's ``on_broadcast`` for each row of the broadcast stream, and builds what it yields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
from typing_extensions import override

from weir.author.operator import OperatorContext
from weir.errors import UserFunctionError, WeirError
from weir.operators.side_rows import SideDicts
from weir.operators.stateless.functions import FlatMapOperator
from weir.rows.python_values import row_dicts
from weir.rows.records import EVENT_TIME_COLUMN, INGEST_TIME_COLUMN, user_columns
from weir.rows.side_outputs import SideRows
from weir.specs import FlatMapSpec, SideOutput


class RuleRows(FlatMapOperator):
    """What is yielded takes the times of the row of the broadcast stream."""

    def __init__(self, schema: pa.Schema, sides: Sequence[SideOutput]) -> None:
        super().__init__(FlatMapSpec(lambda row: (), schema))
        self._sides = SideDicts(sides)
        #: Of the rows of the last call, how many were taken.
        self.taken = 0

    @override
    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._sides.open(context)

    def run(
        self,
        batch: pa.RecordBatch,
        function: Callable[[int, dict[str, Any]], Any],
        is_over: Callable[[int], bool] | None = None,
    ) -> list[pa.RecordBatch | SideRows]:
        """Return what a function makes of rows; it is called with the position of each, and the row.

        Up to the first one after which it ``is_over``: :attr:`taken` says how many there were.

        Raises:
            UserFunctionError: it raised, or yielded something else than rows as declared.
        """
        results: list[dict[str, Any]] = []
        origins: list[int] = []
        self._sides.forget()
        self.taken = batch.num_rows
        for self._row_index, row in enumerate(row_dicts(batch.select(user_columns(batch.schema)))):
            try:
                made = function(self._row_index, row)
                if made is not None and (isinstance(made, str | bytes) or not isinstance(made, Iterable)):
                    raise self.failed(
                        f"on_broadcast returned {type(made).__name__}; it yields dicts, or nothing"
                    )
                for result in made if made is not None else ():
                    if isinstance(result, SideRows):
                        self._sides.add(result, self._row_index)
                    else:
                        # The function may change its dict, and yield it again.
                        results.append(dict(self._check_row(result)))
                        origins.append(self._row_index)
            except Exception as error:
                # What our own code says is told already.
                if isinstance(error, WeirError):
                    raise
                raise self.failed(f"on_broadcast raised {type(error).__name__}: {error}") from error
            if is_over is not None and is_over(self._row_index):
                self.taken = self._row_index + 1
                break
        self._row_index, size = None, self._batch_size
        built: list[pa.RecordBatch | SideRows] = [
            self._gather(batch, results[start : start + size], origins[start : start + size])
            for start in range(0, len(results), size)
        ]
        return [*built, *self._sides.built(lambda origins: _times(batch, origins))]

    def failed(self, text: str) -> UserFunctionError:
        """The error to raise about the row that was processed last."""
        return self._error(text)


def _times(batch: pa.RecordBatch, origins: Sequence[int]) -> list[pa.Array]:
    indices = pa.array(origins, pa.int64())
    return [batch.column(name).take(indices) for name in (EVENT_TIME_COLUMN, INGEST_TIME_COLUMN)]
