"""Spec of the step with broadcast state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from weir.specs.keyed import KeyedSpec

if TYPE_CHECKING:
    from weir.broadcast_process import BroadcastProcess


@dataclass(frozen=True)
class BroadcastProcessSpec(KeyedSpec):
    """Rows by key, and rows that every subtask gets: ``factory()`` makes a ``weir.BroadcastProcess`` per subtask.

    It keeps nothing by key. The key groups of the first input say which subtask keeps the dict in a checkpoint, and
    carry it to subtasks that a rescale adds.
    """

    kind: ClassVar[str] = "broadcast_process"
    takes_changes: ClassVar[bool] = True
    takes_several_inputs: ClassVar[bool] = True
    #: Authors may leave key columns out.
    keeps_keys: ClassVar[bool] = False
    runtime: ClassVar[str] = "weir.operators.keyed.broadcast_operator:BroadcastOperator"
    factory_kind: ClassVar[str] = (
        "a class (or a function without arguments) that makes a weir.BroadcastProcess"
    )
    factory: Callable[[], BroadcastProcess]
    schema: pa.Schema

    @property
    def state_names(self) -> tuple[str, ...]:
        """The dict, on its way to a subtask that a rescale adds."""
        return ("broadcast",)

    def keys_of_input(self, index: int) -> tuple[str, ...]:
        """See :class:`KeyedSpec`."""
        return () if index else self.key_columns

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """What the author declared; see :class:`OperatorSpec`."""
        return self.schema
