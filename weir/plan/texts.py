"""What the plan of a job says about time and keys of a step, as a person reads it."""

from __future__ import annotations

import dataclasses

from weir.author.watermarks import DEFAULT_STRATEGY, WatermarkStrategy
from weir.plan.graph import Node
from weir.specs import AssignEventTimeSpec, JoinSpec, KeyedSpec, SourceSpec
from weir.specs.joins import JoinBounds
from weir.specs.multi_joins import MultiJoinSpec
from weir.specs.window_kinds import Window
from weir.specs.window_parts import WindowPartSpec
from weir.specs.window_updates import WindowUpdates

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))
#: Fields of a window that have words of their own.
_TOLD = frozenset({"kind", "size_ms", "step_ms", "offset_ms", "time"})


def key_columns(node: Node) -> list[list[str]]:
    """By input the key columns that a keyed step goes by; of other steps none."""
    if not isinstance(node.spec, KeyedSpec):
        return []
    return [list(node.spec.keys_of_input(position)) for position in range(len(node.inputs))]


def window_text(node: Node) -> str | None:
    """The windows of a step, or the times that a join pairs; None: it goes by neither."""
    window = getattr(node.spec, "window", None)
    if isinstance(node.spec, WindowPartSpec):
        return _window(node.spec.window) + _way_of_rows(node.spec)
    if isinstance(window, Window):
        return _window(window) + _updates(getattr(node.spec, "updates", WindowUpdates()))
    spec = node.spec
    if isinstance(spec, MultiJoinSpec) and spec.window_ms is not None:
        return _same_window(spec.window_ms, None)
    if isinstance(spec, MultiJoinSpec) and spec.span_ms is not None:
        return f"all within {duration_text(spec.span_ms)}"
    if isinstance(spec, JoinSpec) and spec.bounds is not None:
        return _bounds(spec.bounds)
    within_ms = getattr(node.spec, "within_ms", None)
    return f"within {duration_text(within_ms)}" if isinstance(within_ms, int) else None


def watermark_text(node: Node) -> str | None:
    """Event time and watermark of a step that makes them; None: it does not."""
    spec = node.spec
    if isinstance(spec, SourceSpec):
        expression = spec.event_time_expression
        time = spec.event_time_column if expression is None else str(expression)
        return _watermark(time or "the time of reading", spec.watermark)
    if isinstance(spec, AssignEventTimeSpec):
        return _watermark(str(spec.event_time), spec.watermark)
    return None


def duration_text(milliseconds: int) -> str:
    """Such as ``90s``, ``1h`` or ``250ms``."""
    for unit, size in _UNITS:
        if milliseconds and milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


def _way_of_rows(spec: WindowPartSpec) -> str:
    if spec.can_combine:
        return ", adds up the rows of each batch"
    return ", sends every row on as it is" + ("" if spec.key_columns else ", to one subtask")


def _updates(updates: WindowUpdates) -> str:
    text = ""
    if updates.lateness_ms:
        text += f", {duration_text(updates.lateness_ms)} late"
    if (early := updates.early) is not None:
        if early.interval_ms is not None:
            text += f", early every {duration_text(early.interval_ms)} of {early.time} time"
        else:
            text += (
                f", early every {early.rows} rows" if early.where is None else f", early where {early.where}"
            )
    return text if updates.results == "accumulating" else f"{text}, {updates.results}"


def _window(window: Window) -> str:
    if window.kind == "global":
        return "global"
    text = f"{window.kind} {duration_text(window.size_ms)}"
    if window.step_ms != window.size_ms:
        text += f" by {duration_text(window.step_ms)}"
    if window.offset_ms:
        text += f" from {duration_text(window.offset_ms)}"
    if window.time == "processing":
        text += " of the clock"
    for field in dataclasses.fields(window):
        value = getattr(window, field.name)
        if field.name not in _TOLD and value != field.default and value not in (None, ()):
            text += f", {field.name} {value}"
    return text


def _same_window(window_ms: int, slide_ms: int | None) -> str:
    by = "" if slide_ms is None else f" by {duration_text(slide_ms)}"
    return f"the same window of {duration_text(window_ms)}{by}"


def _bounds(bounds: JoinBounds) -> str:
    if bounds.window_ms is not None:
        return _same_window(bounds.window_ms, bounds.slide_ms)
    ends = [
        column if column is not None else "any" if added is None else f"{added:+d} ms"
        for column, added in (
            (bounds.lower_column, bounds.lower_ms),
            (bounds.upper_column, bounds.upper_ms),
        )
    ]
    return f"from {ends[0]} to {ends[1]} of the {('left', 'right')[bounds.side]} row"


def _watermark(time: str, strategy: WatermarkStrategy | None) -> str:
    strategy = strategy or DEFAULT_STRATEGY
    if strategy.generator is not None:
        text = f"{time}, watermark of {getattr(strategy.generator, '__name__', 'a generator')}"
    elif strategy.out_of_orderness_ms is None:
        text = f"{time}, watermark at out_of_order_grace_period"
    else:
        text = f"{time}, watermark {duration_text(strategy.out_of_orderness_ms)} behind"
    if strategy.idle_timeout_ms is not None:
        text += f", idle after {duration_text(strategy.idle_timeout_ms)}"
    if strategy.alignment is not None:
        drift, group = duration_text(strategy.alignment.max_drift_ms), strategy.alignment.group
        text += f", at most {drift} ahead of group {group}"
    return text
