"""The base class of operators with broadcast state: a dict that is the same on every subtask, beside state by key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from weir.author.keyed_process import KeyedHooks, takes
from weir.errors import GraphError

if TYPE_CHECKING:
    from weir.author.broadcast_context import BroadcastContext

BroadcastForm = Literal["records", "batches"]
#: When rows are not held back any more: when there is a rule, or a function of the rules says so.
HoldUntil = Literal["first"] | Callable[[Mapping[str, Any]], bool]
_FORMS = (
    "write `def on_broadcast(self, row, rules)`, and `def process(self, row, rules)` for each row or "
    "`def process_batch(self, batch, rules)` for batches; each may take `context` as well"
)


class BroadcastProcess(KeyedHooks):
    """Rows of a keyed stream, and rules for them that every subtask has.

    A subclass overrides :meth:`on_broadcast`, and one of :meth:`process` and :meth:`process_batch` (the latter counts
    if both are there). Each of the three may leave ``context`` out. State by key is declared as attributes of the
    class, as in a :class:`weir.KeyedProcess`, and so are timers used: ``context.timers`` and ``on_timer(self, key,
    time_ms, context)``, where ``context.rules`` are the rules. One thread calls all of them. The dict and the declared
    states survive restarts and rescales; other attributes of the object do not.
    """

    def on_broadcast(
        self, row: Any, rules: dict[str, Any], context: BroadcastContext, /
    ) -> Iterable[Mapping[str, Any]] | None:
        """Called on every subtask for each row of the broadcast stream: changes the dict.

        It must come to the same dict everywhere, and set what the row says: after a rescale a new subtask may see a
        row of which it knows already. What it has changed when it raises is taken back.

        Args:
            row: a dict of the user columns of the broadcast stream.
            rules: text -> what JSON can hold.
            context: of the row; there is no key but below ``for key in context.each_key(state)``.

        Returns:
            Dicts of exactly the declared columns, or None; they take the times of the row. Every subtask yields them.
        """
        raise NotImplementedError

    def process(
        self, row: Any, rules: Mapping[str, Any], context: BroadcastContext, /
    ) -> Iterable[Mapping[str, Any]] | None:
        """Called for each row; what it yields takes the times of the row.

        Args:
            row: a dict of the user columns.
            rules: the dict, to read.
            context: ``context.key`` has the values of the key columns; states stand for that key.

        Returns:
            Dicts of exactly the declared columns, or None.
        """
        raise NotImplementedError

    def process_batch(
        self, batch: pa.RecordBatch, rules: Mapping[str, Any], context: BroadcastContext, /
    ) -> Iterable[pa.RecordBatch] | None:
        """Called for each batch, Arrow in and Arrow out.

        Args:
            batch: at least one row, with the user columns and both time columns.
            rules: the dict, to read.
            context: ``context.keys(batch)`` are what ``get`` and ``put`` of states take.

        Returns:
            Batches of the declared columns, or None. One with as many rows as ``batch`` may leave the time columns out.
        """
        raise NotImplementedError


def broadcast_form(kind: type) -> BroadcastForm:
    """What a class is given; called by the runtime, and when a job is built.

    Raises:
        GraphError: it is no broadcast process; the message says what to write.
    """
    name = kind.__name__
    if not issubclass(kind, BroadcastProcess):
        raise GraphError(f"{name} is no weir.BroadcastProcess; {_FORMS}")
    if kind.on_broadcast is BroadcastProcess.on_broadcast:
        raise GraphError(f"{name} has no on_broadcast; {_FORMS}")
    is_batches = kind.process_batch is not BroadcastProcess.process_batch
    if not is_batches and kind.process is BroadcastProcess.process:
        raise GraphError(f"{name} has neither process nor process_batch; {_FORMS}")
    used = kind.process_batch if is_batches else kind.process
    for method in (kind.on_broadcast, used):
        if not (takes(method, 2) or takes(method, 3)):
            raise GraphError(f"{name} has {method.__name__} with other arguments; {_FORMS}")
    if hasattr(kind, "broadcast"):
        raise GraphError(f"{name}: 'broadcast' is the name of the rules; give the attribute another one")
    return "batches" if is_batches else "records"


def checked_hold(step: str | None, hold_until: HoldUntil | None) -> HoldUntil | None:
    """What ``connect_broadcast`` was given.

    Raises:
        GraphError: it says not until when.
    """
    if hold_until is None or hold_until == "first" or callable(hold_until):
        return hold_until
    raise GraphError(
        f"step {step!r}: hold_until is {hold_until!r}; it is 'first' (until there is a rule), or a function of the "
        "rules that says whether rows may go on, such as lambda rules: len(rules) >= 3"
    )
