"""From a declaration to its handle."""

from __future__ import annotations

from weir.errors import GraphError
from weir.state.handles.block import Cursor, Handle
from weir.state.handles.elements import ListHandle, MapHandle
from weir.state.handles.values import AggregatingHandle, ReducingHandle, open_value
from weir.state.tables.opened import OperatorTables
from weir.states import AggregatingState, ListState, MapState, ReducingState, State, ValueState


def open_handle(state: State, tables: OperatorTables, cursor: Cursor) -> Handle:
    """Open the table of a declared state, in a subtask.

    Raises:
        StateError: the job's graph does not know the state.
        GraphError: it is of a class that Weir does not know.
    """
    if isinstance(state, ReducingState):
        return ReducingHandle(open_value(state, tables, cursor), state.function)
    if isinstance(state, AggregatingState):
        return AggregatingHandle(open_value(state, tables, cursor), state.add, state.result)
    if isinstance(state, ValueState):
        return open_value(state, tables, cursor)
    if isinstance(state, ListState):
        return ListHandle(state, tables, cursor)
    if isinstance(state, MapState):
        return MapHandle(state, tables, cursor)
    raise GraphError(f"{type(state).__name__} is no kind of state that Weir has")
