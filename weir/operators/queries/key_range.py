"""What a question about a range of keys asks of one key group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from weir.protocol.queries import Question
from weir.state import layout

#: Called now and then while much is read; raises what ends the question.
Check = Callable[[], None]
#: ``start <= key < stop`` of user keys; None: no end.
KeyBounds = tuple[bytes, bytes | None]


@dataclass(frozen=True)
class KeyRange:
    """Keys of one key group, within bounds."""

    group: int
    state_id: int
    bounds: KeyBounds
    question: Question
    check: Check
    #: More runs of keys than these would be slow.
    runs_max: int
    #: Of a run: entries that will do at first, as a rule; 0: nobody knows.
    first_entries: int = 0

    @cached_property
    def prefix(self) -> bytes:
        """Comes before all that the group has of the state."""
        return layout.key_prefix(self.group, self.state_id)

    @property
    def reverse(self) -> bool:
        """Return whether the order is from the last key to the first."""
        return self.question.reverse
