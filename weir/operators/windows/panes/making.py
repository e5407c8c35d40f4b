"""Which operator runs the aggregates of windows."""

from __future__ import annotations

from weir.operators.windows.panes.updated_windows import UpdatedWindowOperator
from weir.operators.windows.panes.window_aggregates import WindowAggregateOperator
from weir.operators.windows.sessions.early_sessions import EarlySessionOperator
from weir.operators.windows.sessions.late_sessions import LateSessionOperator
from weir.operators.windows.sessions.session_aggregates import SessionAggregateOperator
from weir.specs.window_updates import WindowUpdates
from weir.specs.windows import WindowAggregateSpec


def make_window_operator(spec: WindowAggregateSpec) -> WindowAggregateOperator:
    """Make the operator of sessions, or that of windows which are made of panes."""
    if spec.window.kind == "session":
        if spec.updates.lateness_ms or spec.updates.results == "changelog":
            return LateSessionOperator(spec)
        return SessionAggregateOperator(spec) if spec.updates.early is None else EarlySessionOperator(spec)
    if spec.updates != WindowUpdates():
        return UpdatedWindowOperator(spec)
    return WindowAggregateOperator(spec)
