"""How rows of a changelog change its table, as numbers.

Here is decided what a row does: each adds or removes one (:func:`adds_rows`), also half of an update, whose other half
a filter has dropped or another key has got. Two halves that follow each other need not be of one update.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import InputError
from weir.rows.changes import CHANGE_COLUMN, CHANGES

#: The texts of all changes; a code is a position in them.
CHANGE_VALUES = pa.array(CHANGES, pa.string())
INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = range(len(CHANGES))


def change_codes(batch: pa.RecordBatch) -> np.ndarray:
    """The position of each row's change in ``CHANGES``; plain rows are added. uint8, shape (rows,).

    Raises:
        InputError: a value is none of them.
    """
    if CHANGE_COLUMN not in batch.schema.names:
        return np.zeros(batch.num_rows, dtype=np.uint8)
    found = pc.index_in(batch.column(CHANGE_COLUMN), CHANGE_VALUES)
    if found.null_count:
        wrong = batch.column(CHANGE_COLUMN).filter(found.is_null())[0]
        raise InputError(f"{CHANGE_COLUMN} is {wrong.as_py()!r}; it must be one of {', '.join(CHANGES)}")
    codes: np.ndarray = found.to_numpy(zero_copy_only=False).astype(np.uint8)
    return codes


def adds_rows(codes: np.ndarray) -> np.ndarray:
    """Return whether each row is added to the table, and not taken away; bool, shape (rows,)."""
    found: np.ndarray = (codes == INSERT) | (codes == UPDATE_AFTER)
    return found
