"""The way from a declaration to its handle."""

from __future__ import annotations

from weir.author.states import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    SingleState,
    State,
    ValueState,
)
from weir.author.timed_states import SessionState, VersionedState, WindowState
from weir.errors import GraphError
from weir.state.handles.block import Cursor, Handle
from weir.state.handles.byte_values import BytesHandle
from weir.state.handles.cell_values import CellHandle
from weir.state.handles.expiring_cells import ExpiringCellHandle
from weir.state.handles.expiring_collections import ExpiringListHandle, ExpiringMapHandle
from weir.state.handles.expiring_values import ExpiringBytesHandle
from weir.state.handles.lists import ListHandle
from weir.state.handles.maps import MapHandle
from weir.state.handles.sessions import SessionHandle
from weir.state.handles.values import AggregatingHandle, ReducingHandle, ValueHandle
from weir.state.handles.versions import VersionedHandle
from weir.state.handles.windows import WindowHandle
from weir.state.tables.opened import OperatorTables


def open_handle(state: State, tables: OperatorTables, cursor: Cursor) -> Handle:
    """Open the table of a declared state, in a subtask.

    Raises:
        StateError: the job's graph does not know the state.
        GraphError: it is of a class that Weir does not know.
    """
    if isinstance(state, ReducingState):
        return ReducingHandle(_open_value(state, tables, cursor), state.function)
    if isinstance(state, AggregatingState):
        return AggregatingHandle(_open_value(state, tables, cursor), state.add, state.result)
    if isinstance(state, ValueState):
        return _open_value(state, tables, cursor)
    if isinstance(state, ListState):
        return (ListHandle if state.ttl is None else ExpiringListHandle)(state, tables, cursor)
    if isinstance(state, MapState):
        return (MapHandle if state.ttl is None else ExpiringMapHandle)(state, tables, cursor)
    if isinstance(state, VersionedState):
        return VersionedHandle(state, tables, cursor)
    if isinstance(state, WindowState):
        return WindowHandle(state, tables, cursor)
    if isinstance(state, SessionState):
        return SessionHandle(state, tables, cursor)
    raise GraphError(f"{type(state).__name__} is no kind of state that Weir has")


def _open_value(state: SingleState, tables: OperatorTables, cursor: Cursor) -> ValueHandle:
    if state.type.cell_kind:
        return (CellHandle if state.ttl is None else ExpiringCellHandle)(state, tables, cursor)
    return (BytesHandle if state.ttl is None else ExpiringBytesHandle)(state, tables, cursor)
