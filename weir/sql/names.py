"""Names of steps, which follow from the statement's own text: state belongs to them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass
class StepNames:
    """Names below the name of a view or a sink: ``per_auction.group``, ``per_auction.join_2``.

    A statement's names depend on nothing but its own text, so a view keeps its state when others come or go.
    """

    prefix: str
    _counts: dict[str, int] = field(default_factory=dict)

    def step(self, kind: str) -> str:
        """The name of the next step of a kind."""
        name = f"{self.prefix}.{kind}"
        self._counts[name] = self._counts.get(name, 0) + 1
        return name if self._counts[name] == 1 else f"{name}_{self._counts[name]}"

    def within(self, part: str) -> StepNames:
        """Names of a query within the statement, after its alias; a query without one has a number."""
        return StepNames(self.step(re.sub(r"[^A-Za-z0-9_-]", "_", part) or "query"), self._counts)
