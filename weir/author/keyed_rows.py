"""What keyed operators share: keys of rows, and the tables of their states."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from weir.author.operator import OperatorContext
from weir.errors import StateError
from weir.keys import hashing as weir_keys
from weir.keys.division import row_hashes
from weir.state.handles.block import Keys
from weir.state.tables.opened import OperatorTables


def keys_of(batch: pa.RecordBatch, key_columns: Sequence[str], max_parallelism: int) -> Keys:
    """Return the keys of rows, in the order of the rows."""
    column = weir_keys.key_bytes(batch, key_columns)
    return Keys(row_hashes(batch, column), column, max_parallelism)


def declared_tables(context: OperatorContext) -> OperatorTables:
    """What the operator opens its states with.

    Raises:
        StateError: its stage has no store.
    """
    if context.tables is None:
        raise StateError(f"operator {context.operator_name!r} keeps keyed state, but its stage has no store")
    return context.tables
