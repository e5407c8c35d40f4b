"""The keyed state of one subtask's operators, by key group: what a rescale flushes, gives away and takes over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from weir.operators.base import Operator
from weir.state.api import StateBackend


class SubtaskGroupState:
    """Implements ``ownership.GroupState``; called by the subtask's thread."""

    def __init__(self, backend: StateBackend) -> None:
        #: What the operators read and write.
        self.backend = backend
        self._operators: Sequence[Operator] = ()

    def bind(self, operators: Sequence[Operator]) -> None:
        """Set the subtask's operators; called once, before its thread starts."""
        self._operators = operators

    def flush_groups(self, groups: Iterable[int]) -> None:
        """Write dirty entries of these groups; they stay."""
        for operator in self._operators:
            operator.flush_groups(groups)

    def release_groups(self, groups: Iterable[int]) -> None:
        """Write dirty entries of these groups, and forget the groups: they are given away."""
        for operator in self._operators:
            operator.release_groups(groups)

    def adopt_groups(self, groups: Mapping[int, int], location: str) -> None:
        """Own these groups (with owner epochs) from now on; their state is in the store at ``location``."""
        for operator in self._operators:
            operator.adopt_groups(groups)
