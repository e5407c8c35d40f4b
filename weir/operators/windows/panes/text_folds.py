"""First and last texts of windows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from weir.operators.aggregation.columns import Cells, FoldRows, rows_that_count
from weir.operators.aggregation.value_folds import ByTimeFold
from weir.operators.windows.panes.known_texts import KnownTexts, texts_of


class TextByTimeFold(ByTimeFold):
    """The first or the last text: its code, or just after rows were taken in, the number of the row that has it.

    ``weir.operators.windows.panes.window_texts`` makes codes of numbers.
    """

    #: Has the texts of the codes whose results are wanted.
    texts = KnownTexts()

    @staticmethod
    def numbers_of(count: int) -> np.ndarray:
        """What cells have of so many rows; int64, all of them less than 0, and so no codes."""
        return np.arange(-1, -count - 1, -1, dtype=np.int64)

    def are_there(self, cells: Cells) -> np.ndarray:
        """Which entries have a text; bool."""
        return self._is_present(cells.presence)

    def results(self, cells: Cells) -> pa.Array:
        """Texts of entries; see :class:`Fold`."""
        codes = np.ascontiguousarray(cells.integers[:, self.cell])
        return self._texts(codes, self.are_there(cells), self.texts)

    def results_of(self, cells: Cells, texts: KnownTexts) -> pa.Array:
        """Results, null where these texts have none: for questions, while windows leave."""
        codes = np.ascontiguousarray(cells.integers[:, self.cell])
        return self._texts(codes, self.are_there(cells) & texts.are_known(codes), texts)

    def _texts(self, codes: np.ndarray, valid: np.ndarray, texts: KnownTexts) -> pa.Array:
        assert self._dtype is not None, "the graph checks that there is a column"
        return texts_of(codes, valid, texts, self._dtype)

    def _words(self, rows: FoldRows) -> tuple[np.ndarray, np.ndarray]:
        assert rows.column is not None, "the graph checks that there is a column"
        return self.numbers_of(len(rows.column)), rows_that_count(rows.column, rows.mask)
