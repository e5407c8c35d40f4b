"""What the entries of a state mean, by the job's specs and declared types: from store bytes to JSON values."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from weir.author.states import SingleState, State, declared_states, outlasting
from weir.operators.aggregation.columns import Cells
from weir.operators.aggregation.fold import Fold
from weir.operators.keyed.changelog_aggregates import ChangelogAggregateOperator
from weir.operators.keyed.changelog_totals import has_rows
from weir.operators.keyed.deduplicate import deduplicated_state
from weir.operators.queries.dicts import DictFormat
from weir.operators.queries.elements import ElementFormat, is_of_elements
from weir.operators.queries.kept_windows import AccumulatorsFormat, KeptRowsFormat
from weir.operators.queries.state_format import ABSENT, AskedStep, EntryFormat, StateFormat
from weir.operators.queries.window_formats import SessionFormat, WindowFormat
from weir.operators.registry import loaded
from weir.operators.windows.panes.folds import Folds
from weir.operators.windows.panes.pane_times import panes_of, session_pane_ends, window_pane_ends
from weir.plan.graph import Node
from weir.protocol.queries import QueryError
from weir.questions.json_values import plain
from weir.specs import DeduplicateSpec, KeyedAggregateSpec, KeyedProcessSpec
from weir.specs.aggregate_functions import aggregate_parts, has_coded_texts
from weir.specs.broadcast import BroadcastProcessSpec
from weir.specs.changelog_aggregates import ChangelogAggregateSpec
from weir.specs.window_process import WindowProcessSpec
from weir.specs.windows import TEXTS_STATE, WindowAggregateSpec
from weir.state.tables.cells.accumulators import (
    FORMAT_VERSION,
    decode_one,
    decode_values,
    presence_bytes,
    value_bytes,
)
from weir.state.tables.cells.cell_table import WholeCell
from weir.state.tables.stamps import UNDATED, value_stamps

#: Running aggregates whose only cell is replaced by each row.
_COUNTS, _EXTREMES_AND_SUMS = ("count", "count_distinct"), ("sum", "min", "max")
_VIEWS = {"i": "<i8", "u": "<u8", "f": "<f8", "b": "<i8"}


def format_of(node: Node, input_schema: pa.Schema, state_name: str) -> tuple[str, StateFormat]:
    """Return the name under which the job has the number of a state, and how the state is asked.

    Raises:
        QueryError: there is no such state; the message says what there is.
    """
    names = node.spec.asked_names
    if state_name not in names:
        raise QueryError(
            404, f"step {node.name!r} has no state {state_name!r}; it has {', '.join(names) or 'none'}"
        )
    asked = AskedStep(node.spec, node, input_schema, state_name)
    made: tuple[str, StateFormat] = loaded(node.spec.asked_by)(asked)
    return made


def aggregate_format(asked: AskedStep[KeyedAggregateSpec]) -> tuple[str, StateFormat]:
    """Running aggregates; see ``OperatorSpec.asked_by``."""
    index = asked.spec.asked_names.index(asked.state)
    return asked.node.states[""], _aggregate_format(asked.spec, asked.given, index)


def process_format(asked: AskedStep[KeyedProcessSpec]) -> tuple[str, StateFormat]:
    """Declared states; see ``OperatorSpec.asked_by``."""
    states = {state.name: state for state in declared_states(type(asked.spec.factory()))}
    state = outlasting(states[asked.state], asked.spec.horizons)
    return asked.node.states[asked.state], _declared_format(state)


def broadcast_format(asked: AskedStep[BroadcastProcessSpec]) -> tuple[str, StateFormat]:
    """The dict, or declared states; see ``OperatorSpec.asked_by``."""
    if asked.state == "broadcast":
        return asked.node.states[asked.state], DictFormat()
    return process_format(asked)


def deduplicate_format(asked: AskedStep[DeduplicateSpec]) -> tuple[str, StateFormat]:
    """The time at which a key was seen; see ``OperatorSpec.asked_by``."""
    return asked.node.states[asked.state], _declared_format(deduplicated_state(asked.spec))


def totals_format(asked: AskedStep[ChangelogAggregateSpec]) -> tuple[str, StateFormat]:
    """Aggregates over a changelog, all of them at once, as an object; see ``OperatorSpec.asked_by``."""
    operator = ChangelogAggregateOperator(asked.spec)
    names = [aggregate.output for aggregate in asked.spec.aggregates]

    def results_of(entries: Sequence[bytes]) -> list[pa.Array]:
        return operator.results_of(list(entries), asked.node.schema, asked.given)

    def decode(data: bytes) -> Any:
        if not has_rows(data):
            return ABSENT
        return {
            name: plain(column[0].as_py()) for name, column in zip(names, results_of([data]), strict=True)
        }

    def decode_many(entries: Sequence[bytes]) -> pa.Array:
        return pa.StructArray.from_arrays(results_of(entries), names=names)

    return asked.node.states[asked.state], EntryFormat(decode, decode_many=decode_many, is_there=has_rows)


def window_format(asked: AskedStep[WindowAggregateSpec]) -> tuple[str, StateFormat]:
    """Aggregates of windows; see ``OperatorSpec.asked_by``."""
    spec = asked.spec
    index = [aggregate.output for aggregate in spec.aggregates].index(asked.state)
    part = next((part for part in aggregate_parts(spec.aggregates) if index in part.members), None)
    # A window of a single pane has the number of different values in its cells.
    is_whole = spec.window.kind in ("tumbling", "global") and part is not None and part.function != "quantile"
    part_state = None if part is None or is_whole else asked.node.states[part.name]
    if has_coded_texts((spec.aggregates[index],), spec.input_schema):
        part_state = asked.node.states[TEXTS_STATE]
    made = SessionFormat if spec.window.kind == "session" else WindowFormat
    return asked.node.states[""], made(spec, index, part_state)


def kept_format(asked: AskedStep[WindowProcessSpec]) -> tuple[str, StateFormat]:
    """What windows keep beside aggregates, or these; see ``OperatorSpec.asked_by``."""
    spec, states = asked.spec, asked.node.states
    if asked.state != spec.form:
        return window_format(asked)
    is_session = spec.window.kind == "session"
    windows = (SessionFormat if is_session else WindowFormat)(spec, 0)
    step_ms, gap_ms = panes_of(spec.window).pane_ms, spec.window.size_ms
    of_session, of_panes = partial(session_pane_ends, gap_ms), partial(window_pane_ends, step_ms)
    made = KeptRowsFormat if spec.form == "rows" else AccumulatorsFormat
    return states[""], made(spec, windows, states[spec.form], of_session if is_session else of_panes)


def _declared_format(state: State) -> StateFormat:
    if is_of_elements(state):
        return ElementFormat(state)
    assert isinstance(state, SingleState)
    if state.type.cell_kind:
        reader = _CellReader(state)
        if state.ttl is None:
            return EntryFormat(reader, decode_many=reader.many, is_there=_is_present)
        return EntryFormat(reader, _cell_stamp, state.ttl, is_there=_is_present)
    stamp_of = None if state.ttl is None else lambda data: int(value_stamps([data])[0])
    return EntryFormat(lambda data: plain(state.type.decode(data)), stamp_of, state.ttl)


def _cell_stamp(data: bytes) -> int:
    if len(data) != value_bytes(2):
        return UNDATED
    cells, presence = decode_values([data], 2)
    return int(cells[0, 1]) if presence[0, 0] & 2 else UNDATED


class _CellReader:
    """Values of 8 bytes, with or without a time."""

    def __init__(self, state: SingleState) -> None:
        self._type = state.type

    def __call__(self, data: bytes) -> Any:
        cells, presence = decode_values([data], 2 if len(data) == value_bytes(2) else 1)
        if not presence[0, 0] & 1:
            return ABSENT
        kind = self._type.cell_kind
        cell = np.ascontiguousarray(cells[0, :1]).view(_VIEWS[kind])[0].item()
        return plain(self._type.from_plain(bool(cell) if kind == "b" else cell))

    def many(self, entries: Sequence[bytes]) -> pa.Array:
        """Return the values of entries of one cell that are there."""
        if len({len(data) for data in entries}) != 1 or self._type.cell_kind == "b":
            return pa.array([self(data) for data in entries])
        cells, _ = decode_values(entries, 2 if len(entries[0]) == value_bytes(2) else 1)
        column = np.ascontiguousarray(cells[:, 0]).view(_VIEWS[self._type.cell_kind])
        # A type of the user's own may make something else of it.
        first = plain(self._type.from_plain(column[0].item()))
        if type(first) is not type(column[0].item()):
            return pa.array([self(data) for data in entries])
        return pa.array(column)


def _is_present(data: bytes) -> bool:
    return bool(data[1] & 1)


def _aggregate_format(spec: KeyedAggregateSpec, schema: pa.Schema, index: int) -> StateFormat:
    """Running aggregates: their cells are those of a window that never ends."""
    folds = Folds(spec.aggregates, schema)
    fold = folds.folds[index]

    def decode_many(entries: Sequence[bytes]) -> pa.Array:
        cells, presence = decode_values(entries, folds.cell_count)
        # Kernels take no array that cannot be written, such as that of one entry.
        return fold.results(Cells(cells.copy(), presence))

    def decode(data: bytes) -> Any:
        return plain(fold.results(Cells(*decode_one(data, folds.cell_count)))[0].as_py())

    function = spec.aggregates[index].function
    # Decimals have two cells.
    if function not in (*_COUNTS, *_EXTREMES_AND_SUMS) or fold.width > 1:
        return EntryFormat(decode, decode_many=decode_many)
    whole = WholeCell(fold.cell, counts=function in _COUNTS)
    return EntryFormat(
        _cell_decoder(decode, whole, fold, folds.cell_count), decode_many=decode_many, whole=whole
    )


def _cell_decoder(
    decode: Callable[[bytes], Any], whole: WholeCell, fold: Fold, cell_count: int
) -> Callable[[bytes], Any]:
    """Return a decoder of values whose cell is the number itself: without arrays, which are most of the work."""
    none = Cells(np.zeros((0, cell_count), np.int64), np.zeros((0, presence_bytes(cell_count)), np.uint8))
    form = {pa.int64(): "<q", pa.float64(): "<d"}.get(fold.results(none).type)
    if form is None:
        return decode
    size, cell = value_bytes(cell_count), whole.cell
    flag, bit, is_integer = 1 + cell // 8, 1 << cell % 8, form == "<q"
    unpack, start = struct.Struct(form).unpack_from, 1 + presence_bytes(cell_count) + 8 * cell

    def decode_cell(data: bytes) -> Any:
        if len(data) != size or data[0] != FORMAT_VERSION:
            # Refuses it.
            return decode(data)
        if not whole.counts and not data[flag] & bit:
            return None
        number = unpack(data, start)[0]
        return number if is_integer else plain(number)

    return decode_cell
