"""Whole rows that steps keep as one value of a key: the first ones in an order, and those of a window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from weir.operators.keyed.over_frames import Running, told
from weir.operators.queries.reading import StateReading
from weir.operators.queries.state_format import ABSENT, AskedStep, EntryFormat, below_key, first_of
from weir.operators.windows.rows.row_chunks import rows_of_chunk
from weir.operators.windows.rows.window_top import WindowTop
from weir.protocol.queries import Question
from weir.questions.json_values import arrow_column, plain
from weir.rows.changes import CHANGE_COLUMN
from weir.rows.python_values import row_dicts
from weir.specs import TopSpec
from weir.specs.over import OverSpec
from weir.specs.window_top import WindowTopSpec
from weir.state.handles.stored_rows import read_rows

#: Rows of a key: each with its columns.
_Rows = list[dict[str, Any]]


class RankedFormat(EntryFormat):
    """Rows of a key in their order: ``{"rank": 1, "value": {columns}}``."""

    def __init__(self, rows_of: Callable[[Sequence[bytes]], list[_Rows]]) -> None:
        """``rows_of``: the rows of some entries, in their order."""
        super().__init__(lambda data: _ranked(rows_of([data])[0]))
        self._rows_of = rows_of

    @override
    def read(
        self, reading: StateReading, group: int, state_id: int, user_key: bytes, question: Question
    ) -> Any:
        found = super().read(reading, group, state_id, user_key, question)
        return found or ABSENT

    def shown(self, found: Any, question: Question) -> Any:
        """The first ``limit`` rows, or the last of them first."""
        if found is ABSENT:
            return ABSENT
        below = below_key(question)
        return first_of(reversed(found) if below.reverse else found, below)

    @override
    def plain_values(self, values: Sequence[Any]) -> list[Any]:
        return [_ranked(rows) for rows in self._rows_of(values)]

    @override
    def arrow_values(self, values: Sequence[Any]) -> pa.Array:
        return arrow_column(
            [
                [{"rank": rank, "value": row} for rank, row in enumerate(rows, 1)]
                for rows in self._rows_of(values)
            ]
        )


def top_format(asked: AskedStep[TopSpec]) -> tuple[str, RankedFormat]:
    """Rows of a step of the kind ``top``; see ``OperatorSpec.asked_by``."""
    spec, node = asked.spec, asked.node
    added = {CHANGE_COLUMN, spec.rank}
    fields = [field for field in node.schema if field.name not in added]
    # Rows are kept with their event times.
    types = [*(field.type for field in fields), pa.int64()]

    def rows_of(values: Sequence[bytes]) -> list[_Rows]:
        stored = read_rows(list(values))
        # Of a changelog all rows of a key are kept.
        places = np.arange(len(stored.orders)) - np.repeat(stored.firsts, stored.counts)
        columns = stored.decoded(np.flatnonzero(places < spec.rows), types)
        batch = pa.RecordBatch.from_arrays(
            [column.cast(field.type) for column, field in zip(columns, fields, strict=False)],
            names=[field.name for field in fields],
        )
        listed, starts = row_dicts(batch), [0, *np.cumsum(np.minimum(stored.counts, spec.rows)).tolist()]
        return [listed[start:stop] for start, stop in pairwise(starts)]

    return node.states[asked.state], RankedFormat(rows_of)


def window_top_format(asked: AskedStep[WindowTopSpec]) -> tuple[str, RankedFormat]:
    """The first rows of each window; keys are bounds of windows. See ``OperatorSpec.asked_by``."""
    decode, schema = WindowTop.rows.type.decode, asked.spec.schema

    def ordered_rows_of(values: Sequence[bytes]) -> list[_Rows]:
        stored = read_rows([decode(data) for data in values])
        columns = stored.decoded(np.arange(len(stored.orders)), schema.types)
        listed = row_dicts(pa.RecordBatch.from_arrays(columns, names=schema.names).cast(schema))
        starts = [0, *np.cumsum(stored.counts).tolist()]
        return [listed[start:stop] for start, stop in pairwise(starts)]

    if asked.spec.order:
        return asked.node.states[asked.state], RankedFormat(ordered_rows_of)

    def rows_of(values: Sequence[bytes]) -> list[_Rows]:
        found = []
        for data in values:
            batch = rows_of_chunk(decode(data))
            order = pc.sort_indices(batch, sort_keys=[(asked.spec.by, "descending")])
            found.append(row_dicts(batch.take(order)))
        return found

    return asked.node.states[asked.state], RankedFormat(rows_of)


def over_format(asked: AskedStep[OverSpec]) -> tuple[str, RankedFormat]:
    """Rows that later ones look back at, the last one last, with the running values as of each."""
    spec, node = asked.spec, asked.node
    types = spec.kept_types(node.schema)

    def rows_of(values: Sequence[bytes]) -> list[_Rows]:
        stored = read_rows(list(values))
        columns = stored.decoded(np.arange(len(stored.orders)), types)
        made = dict(zip(spec.looked_at, columns, strict=False))
        for number, each in enumerate(spec.running):
            numbers, count = columns[len(spec.looked_at) + 2 * number :][:2]
            found = Running(numbers.to_numpy(), count.to_numpy())
            made[each.output] = told(each, found, node.schema.field(each.output).type)
        listed = row_dicts(pa.RecordBatch.from_pydict({**made, "time": columns[-1]}))
        starts = [0, *np.cumsum(stored.counts).tolist()]
        return [listed[start:stop] for start, stop in pairwise(starts)]

    return node.states[asked.state], RankedFormat(rows_of)


def _ranked(rows: _Rows) -> list[dict[str, Any]]:
    return [{"rank": rank, "value": plain(row)} for rank, row in enumerate(rows, 1)]
