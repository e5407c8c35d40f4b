"""The base class of operators with broadcast state: a dict that is the same on every subtask."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from weir.errors import GraphError

if TYPE_CHECKING:
    from weir.operators.base import OperatorContext

BroadcastForm = Literal["records", "batches"]
_FORMS = (
    "write `def on_broadcast(self, row, rules)`, and `def process(self, row, rules)` for each row or "
    "`def process_batch(self, batch, rules)` for batches"
)


class BroadcastProcess:
    """Rows of a keyed stream, and rules for them that every subtask has.

    A subclass overrides :meth:`on_broadcast`, and one of :meth:`process` and :meth:`process_batch` (the latter counts
    if both are there). One thread calls all of them. The dict survives restarts and rescales; other attributes of the
    object do not.
    """

    def open(self, context: OperatorContext) -> None:
        """Called once before the first rows; may block and read files."""

    def on_broadcast(self, row: Any, rules: dict[str, Any], /) -> None:
        """Called on every subtask for each row of the broadcast stream: changes the dict.

        It must come to the same dict everywhere, and set what the row says: after a rescale a new subtask may see a
        row of which it knows already.

        Args:
            row: a dict of the user columns of the broadcast stream.
            rules: text -> what JSON can hold.
        """
        raise NotImplementedError

    def process(self, row: Any, rules: Mapping[str, Any], /) -> Iterable[Mapping[str, Any]] | None:
        """Called for each row; what it yields takes the times of the row.

        Returns:
            Dicts of exactly the declared columns, or None.
        """
        raise NotImplementedError

    def process_batch(
        self, batch: pa.RecordBatch, rules: Mapping[str, Any], /
    ) -> Iterable[pa.RecordBatch] | None:
        """Called for each batch, Arrow in and Arrow out.

        Returns:
            Batches of the declared columns, or None. One with as many rows as ``batch`` may leave the time columns out.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Called once if :meth:`open` was called, also after a failure; releases resources."""


def broadcast_form(kind: type) -> BroadcastForm:
    """What a class is given; called by the runtime, and when a job is built if the factory is a class.

    Raises:
        GraphError: it is no broadcast process; the message says what to write.
    """
    name = kind.__name__
    if not issubclass(kind, BroadcastProcess):
        raise GraphError(f"{name} is no weir.BroadcastProcess; {_FORMS}")
    if kind.on_broadcast is BroadcastProcess.on_broadcast:
        raise GraphError(f"{name} has no on_broadcast; {_FORMS}")
    if kind.process_batch is not BroadcastProcess.process_batch:
        return "batches"
    if kind.process is BroadcastProcess.process:
        raise GraphError(f"{name} has neither process nor process_batch; {_FORMS}")
    return "records"


def check_broadcast_factory(step: str | None, factory: Any) -> None:
    """Refuse a class that cannot be used; a function is called by the subtasks.

    Raises:
        GraphError: names the step.
    """
    while hasattr(factory, "func"):
        factory = factory.func
    if inspect.isclass(factory):
        try:
            broadcast_form(factory)
        except GraphError as error:
            raise GraphError(f"step {step!r}: {error}") from error
