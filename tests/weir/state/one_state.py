"""The tables of an operator with one unnamed state, outside of a subtask."""

from __future__ import annotations

from weir.state.api import StateBackend
from weir.state.tables.opened import UNNAMED, OperatorTables, StateTables


def one_state(
    backend: StateBackend | None,
    state_id: int = 0,
    cache_bytes: int = 64 << 20,
    max_parallelism: int = 128,
    step: str = "",
) -> OperatorTables | None:
    """Return what such an operator gets; None without a store, as in steps that keep no state."""
    if backend is None:
        return None
    return StateTables(backend, cache_bytes, max_parallelism).of(step, {UNNAMED: state_id})
