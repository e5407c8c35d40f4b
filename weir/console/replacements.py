"""Whether ``weir run`` starts another process in the place of one that died: its job may be what ends them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

#: So many in a run, of either kind.
REPLACEMENTS_MAX = 10
#: So many one after the other that never came to work: they die at the same place.
IDLE_MAX = 3


@dataclass
class Replacements:
    """How many processes of one kind were replaced."""

    count: int = 0
    #: The latest ones, that died before they came to work.
    idle: int = 0

    def take(self, *, had_worked: bool) -> str:
        """Count a replacement of a process that has died; returns why there is none, or "".

        Args:
            had_worked: it had begun what it is there for.
        """
        self.idle = 0 if had_worked else self.idle + 1
        if self.idle > IDLE_MAX:
            return f"as {IDLE_MAX} before it, before it came to work; giving up"
        if self.count == REPLACEMENTS_MAX:
            return f"as {REPLACEMENTS_MAX} before it; giving up"
        self.count += 1
        return ""
