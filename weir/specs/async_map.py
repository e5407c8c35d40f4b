"""Spec of the step that calls an asynchronous function for each row."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from weir.errors import GraphError
from weir.specs.base import OperatorSpec

IN_FLIGHT_MAX = 100_000


@dataclass(frozen=True)
class MapAsyncSpec(OperatorSpec):
    """Call ``await function(row: dict) -> dict`` once per record, for many records at a time."""

    kind: ClassVar[str] = "map_async"
    takes_changes: ClassVar[bool] = True
    runtime: ClassVar[str] = "weir.operators.stateless.async_map:AsyncMapOperator"
    function: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
    schema: pa.Schema
    in_flight_max: int
    timeout_ms: int
    ordered: bool

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """What the author declared; see :class:`OperatorSpec`."""
        count = self.in_flight_max
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= IN_FLIGHT_MAX:
            raise GraphError(
                f"step {step!r}: in_flight_max is {count!r}; it must be a whole number from 1 to {IN_FLIGHT_MAX:,}"
            )
        return self.schema


def check_is_plain(step: str | None, function: Any) -> Any:
    """The function, if it is not one that has to be awaited; called when the step is written down.

    Raises:
        GraphError: names the step.
    """
    target = function
    while hasattr(target, "func"):
        target = target.func
    if inspect.iscoroutinefunction(target):
        raise GraphError(
            f"step {step!r}: {target.__qualname__} is async; write def, or use map_async, which awaits it"
        )
    return function


def check_is_async(step: str | None, function: Any) -> None:
    """Refuse a function that plainly returns no awaitable; called when the step is written down.

    Raises:
        GraphError: names the step.
    """
    target = function
    while hasattr(target, "func"):
        target = target.func
    is_plain = inspect.isfunction(target) or inspect.ismethod(target)
    if is_plain and not inspect.iscoroutinefunction(target):
        raise GraphError(
            f"step {step!r}: {target.__qualname__} is no async function; write async def, or use map"
        )
