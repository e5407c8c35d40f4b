"""Which transactions of other subtasks come before those of this one, since keys have moved between them.

A subtask of which key groups are taken *settles* first: it ends its open transaction, and marks all that are not
delivered yet with the next number, as names of empty files beside their row logs. No checkpoint cuts through a rescale
(design/0001). So whoever has rows of a moved key sees the mark at its next barrier, and the checkpoint that covers its
rows covers those before them: once it is complete, whoever delivers the later rows may deliver the earlier ones, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from weir.operators.sinks.places import Place

#: Number, and the name of a row log with its subtask and generation.
_MARK = re.compile(r"\.settled-(\d+)(\.rows-(\d+)-(\d+)-\d+\.pending)")


class SettledMarks:
    """Marks of one generation, as one subtask sees them. Methods may raise OSError.

    Args:
        place: of the sink in the checkpoint store.
        subtask_index: of this subtask.
        generation: of the deployment.
    """

    def __init__(self, place: Place, subtask_index: int, generation: int) -> None:
        self._place, self._subtask_index, self._generation = place, subtask_index, generation

    def next_number(self) -> int:
        """Larger than all that there are."""
        return 1 + max((number for number, _, _ in self._found()), default=0)

    def add(self, number: int, name: str) -> None:
        """Mark a transaction by the name of its row log."""
        self._place.seal([self._place.create(_mark(number, name))])

    def of_others(self) -> list[tuple[int, str]]:
        """Number and name of the row log of other subtasks' transactions, in the order in which they are delivered."""
        return sorted((number, name) for number, name, index in self._found() if index != self._subtask_index)

    def remove(self, number: int, name: str) -> None:
        """Forget a transaction that is delivered."""
        self._place.remove(_mark(number, name))

    def remove_earlier(self) -> None:
        """Remove the marks of deployments before this one."""
        for name in self._place.hidden():
            match = _MARK.fullmatch(name)
            if match is not None and int(match[4]) < self._generation:
                self._place.remove(name)

    def _found(self) -> Iterable[tuple[int, str, int]]:
        for name in self._place.hidden():
            match = _MARK.fullmatch(name)
            if match is not None and int(match[4]) == self._generation:
                yield int(match[1]), match[2], int(match[3])


def _mark(number: int, name: str) -> str:
    return f".settled-{number:08d}{name}"
