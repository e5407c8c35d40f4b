"""Windows over a changelog: changes are kept as they come, and folded when they leave, many windows at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
import pyarrow as pa

from weir.operators.windows.panes.told_windows import ToldWindows
from weir.operators.windows.panes.user_windows import rows_of_windows
from weir.operators.windows.rows.process_windows import ProcessWindowOperator
from weir.rows.change_codes import change_codes
from weir.rows.records import UNNAMED_COLUMN, user_columns, with_times
from weir.rows.side_outputs import SideRows


class ChangelogWindowOperator(ProcessWindowOperator):
    """Output: key columns, bounds of the window, and the aggregates of the rows that are left of it; else nothing."""

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | SideRows]:
        """Process rows of a changelog as :class:`ProcessWindowOperator` does.

        Raises:
            InputError: a value of ``_change`` is none; told with its batch, and not when the window leaves.
        """
        change_codes(batch)
        yield from super().process(batch)

    def _made(self, windows: ToldWindows) -> Iterator[pa.RecordBatch]:
        """Results, in batches of so many windows that their changes are about as many as the rows of a batch."""
        for part in self._blocks(windows):
            owners = self._owners(part)
            loaded = rows_of_windows(self._kept, [list(each.values()) for each in owners])
            self._forget(owners, part.ends_ms)
            if loaded is not None:
                yield from self._folded(part, *loaded)

    def _folded(
        self, windows: ToldWindows, rows: pa.RecordBatch, window_of: np.ndarray
    ) -> Iterator[pa.RecordBatch]:
        """Results of windows; ``window_of``: the number of each change's window, ascending."""
        table = pa.Table.from_batches([rows])
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
