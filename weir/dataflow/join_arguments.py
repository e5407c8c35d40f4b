"""What ``KeyedStream.join`` is given about times, as the bounds of a spec."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa

from weir.errors import GraphError
from weir.specs.expression_checks import check_is_name
from weir.specs.joins import JoinBounds
from weir.spelling import did_you_mean
from weir.state.ttl import duration_ms


def join_bounds(
    step: str,
    left: pa.Schema,
    right: pa.Schema,
    within: Any,
    between: Any,
    window: Any,
    ttl: Any,
    *,
    ttl_name: str = "ttl",
) -> JoinBounds | None:
    """The bounds of a join; None: rows with equal keys belong together, whatever their times.

    Args:
        step: name of the step, for messages.
        left: columns of the left side.
        right: columns of the right side.
        within: two durations, from the time of the left row to the earliest and the latest one of the right.
        between: two columns of one side.
        window: a tumbling or a sliding window: both are in the same one.
        ttl: a duration: the two times are not farther apart.
        ttl_name: what the author calls it.

    Raises:
        GraphError: more than one is given, or one is wrong.
    """
    arguments = {"within": within, "between": between, "window": window, "ttl": ttl}
    given = [name for name, value in arguments.items() if value is not None]
    if len(given) > 1:
        raise GraphError(f"step {step!r}: {' and '.join(given)} are given; give one of them")
    if ttl is not None:
        try:
            length_ms = duration_ms(ttl)
        except GraphError as error:
            raise GraphError(f"step {step!r}: {ttl_name}: {error}") from error
        return JoinBounds(0, lower_ms=-length_ms, upper_ms=length_ms)
    if window is not None:
        return _window_bounds(step, window)
    if within is not None:
        lower, upper = _pair(step, "within", within, 'durations, such as ("-10s", "0s")')
        return JoinBounds(0, lower_ms=_signed_ms(step, lower), upper_ms=_signed_ms(step, upper))
    if between is not None:
        lower, upper = _pair(step, "between", between, 'columns of one side, such as ("opens", "expires")')
        for column in (lower, upper):
            check_is_name(f"step {step!r}: between", column)
        return JoinBounds(
            _side_of(step, (lower, upper), (left, right)), lower_column=lower, upper_column=upper
        )
    return None


def _window_bounds(step: str, window: Any) -> JoinBounds:
    kind = getattr(window, "kind", None)
    if kind is None:
        raise GraphError(f'step {step!r}: window is {window!r}; give one such as weir.tumbling("10s")')
    if kind not in ("tumbling", "sliding") or window.time != "event":
        raise GraphError(
            f"step {step!r}: window is one of kind {kind} over {window.time} time; a join takes tumbling and sliding "
            "windows over event time; else say within=, how far apart two rows may be"
        )
    slide_ms = window.step_ms if kind == "sliding" else None
    return JoinBounds(0, window_ms=window.size_ms, offset_ms=window.offset_ms, slide_ms=slide_ms)


def _pair(step: str, name: str, value: Any, what: str) -> tuple[Any, Any]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise GraphError(f"step {step!r}: {name} is {value!r}; give two {what}")
    return value[0], value[1]


def _signed_ms(step: str, value: Any) -> int:
    """Milliseconds of a duration that may be negative or 0: text, a ``timedelta``, or a whole number of ms."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        if isinstance(value, dt.timedelta):
            if value == dt.timedelta(0):
                return 0
            return duration_ms(value) if value > dt.timedelta(0) else -duration_ms(-value)
        text = str(value).strip() if isinstance(value, str) else value
        if isinstance(text, str):
            sign = -1 if text.startswith("-") else 1
            text = text.removeprefix("-").removeprefix("+")
            if text and text.rstrip("mshdw") in ("0", "") and text[0] == "0":
                return 0
            return sign * duration_ms(text)
        return duration_ms(value)
    except GraphError as error:
        raise GraphError(
            f"step {step!r}: within has {value!r}, which is not a duration; write it as '-10s', '0s' or '1h30m', as a "
            "datetime.timedelta, or as whole milliseconds"
        ) from error


def _side_of(step: str, columns: tuple[Any, Any], schemas: tuple[pa.Schema, pa.Schema]) -> int:
    """The side that has both columns; the left one if both sides do."""
    for side, schema in enumerate(schemas):
        if all(name in schema.names for name in columns):
            return side
    known = [*schemas[0].names, *schemas[1].names]
    for name in columns:
        if name not in known:
            raise GraphError(
                f"step {step!r}: between: there is no column {name!r}{did_you_mean(str(name), known)}"
            )
    raise GraphError(
        f"step {step!r}: between: {columns[0]!r} and {columns[1]!r} are columns of different sides; "
        "both ends of an interval must be of one row"
    )
