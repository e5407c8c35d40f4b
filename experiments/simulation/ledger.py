"""Who owns which key group, as owners' machines say it: one owner at a time, with one epoch more at each handover.

And how far event time has come for each group, whoever owned it: what an owner's watermark has passed, its state does
not wait for any more, so no later owner may process such a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence

from experiments.simulation.world import Violation
from weir.protocol.rescale.rescale_owner import HandOver, OwnerAction, OwnerEvent, OwnerMachine, TakeOwnership
from weir.protocol.routing import RoutingTable

#: Index of the owner, None while the group is on its way; and its epoch.
_Entry = tuple[int | None, int]


class Ledger:
    """Of one run; each deployment has entries of its own."""

    def __init__(
        self, generation: Callable[[], int], fail: Callable[[Violation], None], counts: Counter[str]
    ) -> None:
        """``generation``: of the deployment to which the calling thread belongs; ``fail`` ends the run."""
        self._counts = counts
        self.generation, self._fail = generation, fail
        #: By generation, stage and group.
        self._entries: dict[tuple[int, int, int], _Entry] = {}
        #: The same: the highest watermark of an owner, ms.
        self._passed_ms: dict[tuple[int, int, int], int] = {}

    def watched(self, machine: type[OwnerMachine]) -> type[OwnerMachine]:
        """Returns the machine's class with every step looked at."""
        ledger = self

        class Watched(machine):  # type: ignore[misc,valid-type]
            """Tells the ledger what it decides."""

            def __init__(self, subtask_index: int, table: RoutingTable, inputs: Iterable[Hashable]) -> None:
                super().__init__(subtask_index, table, inputs)
                self._index, self._place = subtask_index, (ledger.generation(), table.stage_index)
                ledger.begin(self._place, table)

            def handle(self, event: OwnerEvent) -> list[OwnerAction]:
                """Take an event in."""
                actions: list[OwnerAction] = super().handle(event)
                for action in actions:
                    ledger.note(self._place, self._index, action)
                self.check_invariants()
                ledger.compare(self._place, self._index, self.owned_mask.tolist())
                return actions

        return Watched

    def begin(self, place: tuple[int, int], table: RoutingTable) -> None:
        """A subtask was made; ``place``: generation and stage."""
        for group, (owner, epoch) in enumerate(zip(table.groups, table.owner_epochs, strict=True)):
            self._entries.setdefault((*place, group), (owner, epoch))

    def note(self, place: tuple[int, int], index: int, action: OwnerAction) -> None:
        """Follow what a subtask decided."""
        match action:
            case HandOver(_, _, groups):
                for group, epoch in groups.items():
                    self._change((*place, group), index, (index, epoch - 1), (None, epoch))
            case TakeOwnership(_, groups, _):
                self._counts["groups moved"] += len(groups)
                for group, epoch in groups.items():
                    self._change((*place, group), index, (None, epoch), (index, epoch))

    def compare(self, place: tuple[int, int], index: int, mask: Sequence[bool]) -> None:
        """What a subtask takes for its own must be that."""
        for group, is_own in enumerate(mask):
            owner, _ = self._entries[(*place, group)]
            if is_own != (owner == index):
                self._fail(
                    Violation(
                        f"generation {place[0]}, stage {place[1]}, key group {group}: subtask {index} "
                        f"{'takes it for its own' if is_own else 'does not own it'}, but the owner is {owner}"
                    )
                )

    def watermark(self, place: tuple[int, int], index: int, time_ms: int) -> None:
        """An owner's operators were told of a watermark."""
        for group, (owner, _) in self._entries.items():
            if group[:2] == place and owner == index:
                self._passed_ms[group] = max(time_ms, self._passed_ms.get(group, time_ms))

    def row(self, place: tuple[int, int], index: int, group: int, time_ms: int) -> None:
        """An owner processes a row."""
        passed_ms = self._passed_ms.get((*place, group), time_ms)
        if time_ms < passed_ms:
            self._fail(
                Violation(
                    f"generation {place[0]}, stage {place[1]}, key group {group}: subtask {index} processes a row of "
                    f"{time_ms}, after the watermark of an owner was {passed_ms}"
                )
            )

    def _change(self, group: tuple[int, int, int], index: int, expected: _Entry, now: _Entry) -> None:
        found = self._entries[group]
        if found != expected:
            self._fail(
                Violation(
                    f"generation {group[0]}, stage {group[1]}, key group {group[2]}: subtask {index} makes it {now}, "
                    f"but it is {found} (owner, epoch)"
                )
            )
        self._entries[group] = now
