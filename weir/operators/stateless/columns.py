"""Operators that rename columns, and that make a row of each element of a list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.author.operator import Operator, OperatorContext
from weir.rows.records import BATCH_BYTES_MAX, batch_bytes
from weir.specs.columns import ExplodeSpec, RenameSpec


class RenameOperator(Operator):
    """Gives columns other names; shares memory with the input."""

    def __init__(self, spec: RenameSpec) -> None:
        self._names = dict(spec.names)

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Return one batch, with other names."""
        fields = [field.with_name(self._names.get(field.name, field.name)) for field in batch.schema]
        return (pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields)),)


class ExplodeOperator(Operator):
    """Makes a row of each element of a list: the other columns, times included, are repeated.

    Batches are cut, so that long lists need no more memory than short ones.
    """

    def __init__(self, spec: ExplodeSpec) -> None:
        self._column = spec.column
        self._keep_empty = spec.keep_empty
        self._rows_max = 32_768

    def open(self, context: OperatorContext) -> None:
        """Learn where batches are cut."""
        self._rows_max = context.batch_size

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows of all elements, in order."""
        position = batch.schema.get_field_index(self._column)
        lists = batch.column(position)
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
        elements = pc.list_flatten(lists)
        parents = np.repeat(np.arange(len(lists)), np.maximum(lengths, 1) if self._keep_empty else lengths)
        indices = np.arange(int(lengths.sum()))
        if self._keep_empty:
            # A row without elements has null in its place.
            is_element = (lengths > 0)[parents]
            found = np.zeros(len(parents), dtype=np.int64)
            found[is_element] = indices
            taken = pa.array(found, mask=~is_element)
        else:
            taken = pa.array(indices)
        element = lists.type.value_field
        field = pa.field(self._column, element.type, nullable=element.nullable or self._keep_empty)
        schema = batch.schema.set(position, field)
        rest = batch.remove_column(position)
        rows_max = max(1, min(self._rows_max, BATCH_BYTES_MAX * batch.num_rows // max(1, batch_bytes(rest))))
        for start in range(0, len(parents), rows_max):
            rows = rest.take(pa.array(parents[start : start + rows_max]))
            columns = list(rows.columns)
            columns.insert(position, elements.take(taken.slice(start, rows_max)))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
