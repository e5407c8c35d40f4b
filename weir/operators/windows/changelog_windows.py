"""Windows over a changelog: changes are kept as they come, and folded when they leave, many windows at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
import pyarrow as pa

from weir.operators.change_codes import change_codes
from weir.operators.windows.process_windows import ProcessWindowOperator
from weir.operators.windows.row_chunks import rows_of_chunk
from weir.operators.windows.told_windows import ToldWindows
from weir.records import UNNAMED_COLUMN, user_columns, with_times
from weir.side_outputs import SideRows


class ChangelogWindowOperator(ProcessWindowOperator):
    """Output: key columns, bounds of the window, and the aggregates of the rows that are left of it; else nothing."""

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | SideRows]:
        """See :class:`ProcessWindowOperator`.

        Raises:
            InputError: a value of ``_change`` is none; told with its batch, and not when the window leaves.
        """
        change_codes(batch)
        yield from super().process(batch)

    def _made(self, windows: ToldWindows) -> Iterator[pa.RecordBatch]:
        """Results, in batches of so many windows that their changes are about as many as the rows of a batch."""
        chunks, numbers, rows = list[pa.RecordBatch](), list[int](), 0
        for number, (_, bounds, owners) in enumerate(self._with_owners(windows)):
            for pane_ms, owner in owners.items():
                found = [rows_of_chunk(data) for data in self._kept.of(owner)]
                chunks += found
                numbers += [number] * len(found)
                rows += sum(chunk.num_rows for chunk in found)
                if self._is_last(pane_ms, bounds.end_ms):
                    self._kept.clear(owner)
            if rows >= self._batch_size:
                yield from self._folded(windows, chunks, numbers)
                chunks, numbers, rows = [], [], 0
        yield from self._folded(windows, chunks, numbers)

    def _folded(
        self, windows: ToldWindows, chunks: list[pa.RecordBatch], numbers: list[int]
    ) -> Iterator[pa.RecordBatch]:
        """Results of windows; ``numbers``: by chunk of changes that of its window, ascending."""
        if not chunks:
            return
        table = pa.Table.from_batches(chunks)
        window_of = np.repeat(numbers, [chunk.num_rows for chunk in chunks])
        changes = pl.DataFrame(table.select(user_columns(table.schema)))
        made = self._process_spec.factory(changes.with_columns(pl.Series(UNNAMED_COLUMN, window_of)))
        if not made.height:
            return
        told = windows.part(made[UNNAMED_COLUMN].to_numpy())
        names = self._process_spec.schema.names
        # Of Polars' types those that were declared.
        found = made.select(names).to_arrow(compat_level=pl.CompatLevel.oldest()).combine_chunks()
        bounds = [pa.array(told.starts_ms), pa.array(told.ends_ms)]
        columns = [*told.keys, *bounds, *found.cast(self._process_spec.schema).to_batches()[0].columns]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        yield with_times(batch, told.times_ms, self._clock.now_us())
