"""The keys of a subtask that have a value in declared states: what ``context.each_key`` goes through."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from weir.author.states import ListState, MapState, SingleState, State
from weir.keys import hashing as weir_keys
from weir.rows.frames import frame_of
from weir.state import layout
from weir.state.handles.block import Keys
from weir.state.tables.opened import OperatorTables

#: Of the key of an element: the length of the key that it belongs to (``weir.state.handles.block.element_owner``).
_LENGTH_BYTES = 4


@dataclass(frozen=True)
class AllKeys:
    """Keys of a subtask, for one batch of rules."""

    keys: Keys
    #: The values of the key columns of each.
    tuples: list[tuple[object, ...]]
    #: Of the states that were looked at: each key has had a value in one of them.
    names: frozenset[str]


def find_keys(
    tables: OperatorTables, states: Sequence[State], groups: Iterable[int], key_schema: pa.Schema
) -> AllKeys:
    """Look through states, after what is cached of them was written; windows, sessions and versions are left out.

    Args:
        tables: of the operator.
        states: that it declares.
        groups: key groups that the subtask owns.
        key_schema: the key columns.

    Raises:
        StateError: the store cannot be written or read.
    """
    looked = [state for state in states if isinstance(state, SingleState | ListState | MapState)]
    numbers = {tables.state_ids[state.name] for state in looked}
    for table in tables.tables:
        if table.state_id in numbers:
            table.flush()
    listed = sorted(groups)
    every = list(dict.fromkeys(key for state in looked for key in _keys_of(tables, state, listed)))
    column = weir_keys.KeyColumn.from_list(every)
    keys = Keys(weir_keys.hash_keys(column), column, tables.max_parallelism, is_distinct=True)
    arrays = weir_keys.decode_keys(column, key_schema.types)
    rows = frame_of(pa.RecordBatch.from_arrays(arrays, schema=key_schema)).rows()
    return AllKeys(keys, rows, frozenset(state.name for state in looked))


def _keys_of(tables: OperatorTables, state: State, groups: Sequence[int]) -> Iterator[bytes]:
    number, start = tables.state_ids[state.name], layout.NO_NAMESPACE_HEADER_BYTES
    last = None
    for group in groups:
        for key, _ in tables.backend.scan_prefix(layout.key_prefix(group, number)):
            if isinstance(state, SingleState):
                yield key[start:]
                continue
            first = start + _LENGTH_BYTES
            owner = key[first : first + int.from_bytes(key[start:first], "big")]
            if owner != last:
                last = owner
                yield owner
