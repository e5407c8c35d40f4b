"""Spec of the step with broadcast state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from typing_extensions import override

from weir.author.broadcast_process import HoldUntil
from weir.specs.keyed import KeyedProcessSpec

#: State of the rows that wait for rules.
HELD_STATE = "_held"


@dataclass(frozen=True)
class BroadcastProcessSpec(KeyedProcessSpec):
    """Rows by key, and rows that every subtask gets: ``factory()`` makes a ``weir.BroadcastProcess`` per subtask.

    The key groups of the first input say which subtask keeps the dict in a checkpoint, and carry it to subtasks that a
    rescale adds.
    """

    kind: ClassVar[str] = "broadcast_process"
    takes_several_inputs: ClassVar[bool] = True
    #: Authors may leave key columns out.
    keeps_keys: ClassVar[bool] = False
    runtime: ClassVar[str] = "weir.operators.keyed.broadcast_operator:BroadcastOperator"
    asked_by: ClassVar[str] = "weir.operators.queries.formats:broadcast_format"
    factory_kind: ClassVar[str] = (
        "a class (or a function without arguments) that makes a weir.BroadcastProcess"
    )
    hold_until: HoldUntil | None = field(default=None, metadata={"came_later": True})

    @property
    def has_timers(self) -> bool:
        """Return whether the step has timers; the key columns are known for the sake of other states, too."""
        return any(state.kind == "timers" for state in self.states)

    @property
    def state_names(self) -> tuple[str, ...]:
        """The dict, on its way to a subtask that a rescale adds, what the author declared, and rows that wait."""
        held = () if self.hold_until is None else (HELD_STATE,)
        return ("broadcast", *super().state_names, *held)

    @property
    @override
    def may_order_time(self) -> bool:
        # Rows that wait for rules are in order already.
        return self.hold_until is None

    def hands_on_times(self, index: int) -> bool:
        """Not of rules; see :class:`OperatorSpec`."""
        return index == 0

    @override
    def keys_of_input(self, index: int) -> tuple[str, ...]:
        return () if index else self.key_columns
