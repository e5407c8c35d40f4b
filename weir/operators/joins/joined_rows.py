"""What leaves a join: batches of its schema, of pairs of rows and of rows that have not matched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from weir.operators.joins.row_codec import RowCodec
from weir.rows.records import EVENT_TIME_COLUMN, INGEST_TIME_COLUMN, system_schema
from weir.specs import JoinSpec
from weir.specs.arrow_form import arrow_form


class JoinedRows:
    """Knows which columns of both sides are in the result; these are all that is kept of a row."""

    def __init__(self, spec: JoinSpec, schema: pa.Schema) -> None:
        """``schema``: user columns of the result."""
        self._spec = spec
        self._schema = system_schema(schema)
        #: Of each side: name in the input, name in the result.
        self.columns = [
            [pair for pair in spec.columns_of_input(side) if pair[1] in schema.names]
            for side in range(spec.inputs_count)
        ]
        self.types = [[schema.field(output).type for _, output in columns] for columns in self.columns]
        self.key_types = [schema.field(name).type for name in spec.key_columns]
        self.codecs = [RowCodec(types) for types in self.types]

    def describe(self) -> dict[str, Any]:
        """What the bytes of kept rows mean, beside the version of their form; for snapshots."""
        described = self._spec.describe()
        return {
            "keys": [
                [name, arrow_form(dtype)]
                for name, dtype in zip(self._spec.key_columns, self.key_types, strict=True)
            ],
            "rows": [
                [[name, arrow_form(dtype)] for (name, _), dtype in zip(columns, types, strict=True)]
                for columns, types in zip(self.columns, self.types, strict=True)
            ],
            **{name: described[name] for name in self._spec.persisted_fields},
        }

    def encode(self, side: int, batch: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        """The bytes of the columns that are kept; see :meth:`RowCodec.encode`."""
        arrays = [batch.column(name) for name, _ in self.columns[side]]
        return self.codecs[side].encode(arrays, batch.num_rows)

    def pairs(
        self,
        side: int,
        new: pa.RecordBatch,
        kept: Sequence[pa.Array],
        times_ms: np.ndarray,
        more: Mapping[str, pa.Array],
    ) -> pa.RecordBatch:
        """New rows of a side, each with a kept one of the other side.

        Args:
            side: that of the new rows.
            new: one for each pair.
            kept: columns of the kept rows, of the codec.
            times_ms: event times of the result, int64.
            more: further columns of the result.
        """
        found = self._of_new(side, new) | dict(more)
        found |= {output: array for (_, output), array in zip(self.columns[1 - side], kept, strict=True)}
        return self.batch(found, times_ms, new.column(INGEST_TIME_COLUMN))

    def alone(
        self,
        side: int,
        new: pa.RecordBatch,
        times_ms: np.ndarray,
        others: Mapping[str, pa.Array] | None = None,
    ) -> pa.RecordBatch:
        """New rows of a side that have not matched; ``others``: further columns of the result."""
        found = self._of_new(side, new) | dict(others or {})
        return self.batch(found, times_ms, new.column(INGEST_TIME_COLUMN))

    def combinations(
        self,
        side: int,
        new: pa.RecordBatch,
        kept: Mapping[int, Sequence[pa.Array]],
        times_ms: np.ndarray,
    ) -> pa.RecordBatch:
        """New rows of a side, each with a kept one of every other side.

        Args:
            side: that of the new rows.
            new: one for each combination.
            kept: by side, columns of the kept rows, of its codec.
            times_ms: event times of the result, int64.
        """
        found = self._of_new(side, new)
        for other, arrays in kept.items():
            found |= {output: array for (_, output), array in zip(self.columns[other], arrays, strict=True)}
        return self.batch(found, times_ms, new.column(INGEST_TIME_COLUMN))

    def of_kept(
        self,
        keys: Sequence[pa.Array],
        kept: Mapping[int, Sequence[pa.Array]],
        times_ms: np.ndarray,
        now_us: int,
    ) -> pa.RecordBatch:
        """Kept rows, of some sides or of all; the columns of other sides are null.

        Args:
            keys: key columns.
            kept: by side, columns of its rows, of its codec.
            times_ms: event times of the result, int64.
            now_us: ingest time of the result.
        """
        found = dict(zip(self._spec.key_columns, keys, strict=True))
        for side, arrays in kept.items():
            found |= {output: array for (_, output), array in zip(self.columns[side], arrays, strict=True)}
        return self.batch(found, times_ms, pa.array(np.full(len(times_ms), now_us)))

    def _of_new(self, side: int, new: pa.RecordBatch) -> dict[str, pa.Array]:
        own_keys = self._spec.keys_of_input(side)
        found = {name: new.column(own) for name, own in zip(self._spec.key_columns, own_keys, strict=True)}
        return found | {output: new.column(name) for name, output in self.columns[side]}

    def batch(self, found: dict[str, pa.Array], times_ms: np.ndarray, ingest_us: pa.Array) -> pa.RecordBatch:
        """Rows with these columns and times; other columns of the schema are null."""
        found[EVENT_TIME_COLUMN] = pa.array(times_ms)
        found[INGEST_TIME_COLUMN] = ingest_us
        rows = len(times_ms)
        arrays = [
            found[field.name] if field.name in found else pa.nulls(rows, field.type) for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
