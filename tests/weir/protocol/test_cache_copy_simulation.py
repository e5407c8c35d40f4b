"""Two owners pass a key group to and fro, with every interleaving of copies, changes, losses, aborts and handovers.

Cached entries are versions of a key: what counts at an owner must never be older than what the store has, and a copy of
which nothing was lost must spare the new owner every read.
"""

from __future__ import annotations

import copy
import dataclasses
import random
from collections import deque

import pytest

from tests.effort import cases
from weir.protocol.rescale.cache_copy import (
    CacheCopyMachine,
    CopyAborted,
    CopyArrived,
    CopyPhase,
    CopyResumed,
    CopyTaken,
    CopyWanted,
    Enter,
    Forget,
    GroupsCome,
    GroupsLeave,
    Keep,
    SendRest,
)

GROUP, KEYS = 1, (0, 1)


class StaleEntryError(AssertionError):
    """An owner counts an entry that is older than the store's."""


@dataclasses.dataclass(frozen=True)
class Message:
    """On its way, or waiting for its answer; a sender that gives it up leaves it on its way."""

    number: int
    event: CopyArrived
    entries: tuple[tuple[int, int], ...] = ()


class Party:
    """One subtask: the machine and a table with one group, as ``SubtaskGroupState`` and ``CellTable`` have them."""

    def __init__(self, owns: bool) -> None:
        self.machine = CacheCopyMachine([GROUP] if owns else [])
        self.owns = owns
        self.cache: dict[int, int] = {}
        #: Keys used since the copy; None: there is no good copy.
        self.used: frozenset[int] | None = None

    def fork(self) -> Party:
        other = copy.copy(self)
        other.cache = dict(self.cache)
        other.machine = copy.copy(self.machine)
        for name in ("_phases", "_epochs", "_history"):
            setattr(other.machine, name, copy.copy(getattr(self.machine, name)))
        return other

    def tell(self, event, entries=()):
        left = []
        for action in self.machine.handle(event):
            match action:
                case Forget():
                    self.cache = {}
                case Enter():
                    self.cache.update(entries)
                case Keep() | SendRest():
                    left.append(action)
        self.machine.check_invariants()
        return left

    def key(self):
        machine = self.machine
        return (
            self.owns,
            tuple(sorted(self.cache.items())),
            self.used,
            machine.phase(GROUP),
            machine._version,
            machine._aborted_version,
            machine._epochs.get(GROUP),
        )


class World:
    """State of everything; :meth:`choices` are what may happen next."""

    def __init__(
        self, broken: str = "", changes: int = 1, rescales: int = 2, losses: int = 1, rounds: int = 2
    ) -> None:
        self.broken = broken
        self.parties = [Party(True), Party(False)]
        self.store = dict.fromkeys(KEYS, 0)
        self.parties[0].cache = dict(self.store)
        self.epoch, self.version = 1, 0
        #: Index of the old owner of the rescale that runs; None: none runs.
        self.old: int | None = None
        self.flying: tuple[Message, ...] = ()
        #: What the old owner still has to send of the present part; the next one goes when one is answered.
        self.queue: tuple[Message, ...] = ()
        self.waits_for: int | None = None
        self.stage = "idle"
        #: An owner copies a group once in a rescale, and then what changed.
        self.is_copied = False
        self.rounds = self.rounds_left = rounds
        self.changes, self.rescales, self.losses = changes, rescales, losses
        self.numbers = 0
        self.reached: set[str] = set()

    def fork(self) -> World:
        other = copy.copy(self)
        other.parties = [party.fork() for party in self.parties]
        other.store = dict(self.store)
        other.reached = set()
        return other

    def key(self):
        return (
            tuple(party.key() for party in self.parties),
            tuple(self.store.items()),
            tuple(sorted((m.event.version, m.event.at_handover, m.event.anew, m.event.complete, m.entries,
                          m.number == self.waits_for, *m.event.groups.values()) for m in self.flying)),
            tuple((m.event.anew, m.event.complete, m.entries) for m in self.queue),
            self.waits_for is None, self.stage, self.is_copied, self.rounds_left, self.old, self.version, self.epoch,
            self.changes, self.rescales, self.losses,
        )  # fmt: skip

    # --- what may happen ---

    def choices(self):
        found = []
        owner = next((index for index, party in enumerate(self.parties) if party.owns), None)
        if self.changes and owner is not None:
            found += [("change", key) for key in KEYS]
        if owner is not None and self.parties[owner].used is not None and self.losses:
            found += [("evict", owner, key) for key in self.parties[owner].cache]
        found += [("arrive", index) for index in range(len(self.flying))]
        if self.waits_for is not None and self.losses:
            found.append(("give_up",))
        if self.stage == "idle" and self.rescales:
            found.append(("begin",))
        if self.stage == "ahead":
            # The time for the copy may be over before it was begun.
            found.append(("hand_over",))
            if not self.is_copied:
                found.append(("copy",))
            if self.rounds_left and self._has_copy() and self.waits_for is None:
                found.append(("copy_changes",))
            if self.losses:
                found.append(("abort",))
        if self.stage == "handing over" and self.waits_for is None and not self.queue:
            found.append(("come",))
        return found

    def do(self, name, *args):
        getattr(self, f"_{name}")(*args)

    def _change(self, key):
        self.changes -= 1
        party = next(party for party in self.parties if party.owns)
        party.cache[key] = party.cache.get(key, self.store[key]) + 1
        # Dirty entries are written before anything leaves: the store is as new as its owner whenever it counts.
        self.store[key] = party.cache[key]
        if party.used is not None:
            party.used |= {key}

    def _evict(self, index, key):
        self.losses -= 1
        self.parties[index].used = None
        del self.parties[index].cache[key]

    def _begin(self):
        self.rescales -= 1
        self.version += 1
        self.stage, self.is_copied, self.rounds_left = "ahead", False, self.rounds
        self.old = 0 if self.parties[0].owns else 1
        self.parties[self.old].used = None
        self.parties[self.old].tell(CopyWanted(self.version, (GROUP,)))

    def _copy(self):
        old = self.parties[self.old]
        old.used, self.is_copied = frozenset(), True
        self._send([self._message(old.cache)])

    def _has_copy(self):
        old = self.parties[self.old]
        return old.used is not None and old.machine.phase(GROUP) is CopyPhase.TAKEN

    def _copy_changes(self):
        old = self.parties[self.old]
        self.rounds_left -= 1
        changed = {key: old.cache[key] for key in old.used if key in old.cache}
        if self.broken != "unconfirmed":
            old.tell(CopyResumed(self.version, (GROUP,)))
        old.used = frozenset()
        self.reached.add("again")
        self._send([self._message(changed)])

    def _message(self, entries=(), **flags):
        self.numbers += 1
        event = CopyArrived(self.version, {GROUP: self.epoch + 1}, **flags)
        return Message(self.numbers, event, tuple(sorted(dict(entries).items())))

    def _send(self, messages):
        self.queue = tuple(messages)
        self._send_next()

    def _send_next(self):
        self.waits_for = None
        if self.queue:
            first, *rest = self.queue
            self.queue = tuple(rest)
            self.flying += (first,)
            self.waits_for = first.number

    def _arrive(self, index):
        message = self.flying[index]
        self.flying = self.flying[:index] + self.flying[index + 1 :]
        # Whoever is not the old owner of that version is its target: they take turns.
        event = message.event
        if self.broken == "order":
            event = dataclasses.replace(event, at_handover=False)
        if self.broken == "anew":
            event = dataclasses.replace(event, anew=False)
        if self.broken == "version":
            event = dataclasses.replace(event, version=self.version)
        target = self.parties[1 - self.old]
        target.tell(event, message.entries)
        if message.number == self.waits_for:
            if self.stage == "ahead":
                self.parties[self.old].tell(CopyTaken(event.version, (GROUP,)))
            self._send_next()

    def _give_up(self):
        """The sender has waited for too long; the message may still arrive."""
        self.losses -= 1
        self.queue, self.waits_for = (), None

    def _abort(self):
        self.losses -= 1
        self.stage, self.queue, self.waits_for = "idle", (), None
        for party in self.parties:
            party.tell(CopyAborted(self.version))

    def _hand_over(self):
        old = self.parties[self.old]
        if self.waits_for is not None:
            self.queue, self.waits_for = (), None
        is_good = old.used is not None or self.broken == "good"
        actions = old.tell(GroupsLeave(self.version, (GROUP,), frozenset({GROUP} if is_good else ())))
        messages = []
        for action in actions:
            if action.anew:
                messages += [self._message(anew=True, at_handover=True)]
            used = old.used or ()
            entries = old.cache if action.anew else {key: old.cache[key] for key in used if key in old.cache}
            messages += [self._message(entries, at_handover=True)]
            messages += [self._message(complete=True, at_handover=True)]
            self.reached.add("anew" if action.anew else "changed")
        old.owns, old.used = False, None
        self.stage = "handing over"
        self._send(messages)

    def _come(self):
        self.epoch += 1
        new = self.parties[1 - self.old]
        kept = new.tell(GroupsCome({GROUP: self.epoch}))
        if kept:
            self.reached.add("kept")
        else:
            new.cache = {}
            self.reached.add("forgotten")
        new.owns, self.stage = True, "idle"
        stale = {key: entry for key, entry in new.cache.items() if entry != self.store[key]}
        if stale:
            raise StaleEntryError(f"{stale} counts, but the store has {self.store}")


def explore(world: World, states_max: int) -> tuple[int, set[str]]:
    """Every interleaving; returns the number of states and what was reached."""
    seen, reached = {world.key()}, set()
    todo = deque([world])
    while todo and len(seen) < states_max:
        here = todo.popleft()
        for choice in here.choices():
            there = here.fork()
            there.do(*choice)
            reached |= there.reached
            key = there.key()
            if key not in seen:
                seen.add(key)
                todo.append(there)
    return len(seen), reached


def walks(rng: random.Random, count: int, broken: str = "") -> None:
    for _ in range(count):
        world = World(broken, changes=4, rescales=4, losses=4)
        while choices := world.choices():
            world.do(*rng.choice(choices))


def test_no_interleaving_of_two_rescales_makes_an_old_entry_count():
    states, reached = explore(World(changes=2, rescales=2, losses=1, rounds=0), 100_000)
    assert 5_000 < states < 100_000, "the whole space was seen"
    assert reached == {"kept", "forgotten", "anew", "changed"}


def test_no_interleaving_of_copies_of_what_changed_makes_an_old_entry_count():
    states, reached = explore(World(changes=2, rescales=1, losses=2, rounds=2), 100_000)
    assert 1_000 < states < 100_000, "the whole space was seen"
    assert reached == {"kept", "forgotten", "anew", "changed", "again"}


@pytest.mark.parametrize("seed", range(cases(2)))
def test_no_walk_through_four_rescales_makes_an_old_entry_count(seed):
    walks(random.Random(seed), 400)


def test_without_losses_the_new_owner_has_everything():
    rng = random.Random(7)
    for _ in range(300):
        world = World(changes=4, rescales=2, losses=0)
        while choices := world.choices():
            choice = rng.choice(choices)
            world.do(*choice)
            if choice == ("come",):
                assert world.parties[1 - world.old].cache == world.store


@pytest.mark.parametrize("broken", ["order", "anew", "version", "good", "unconfirmed"])
def test_each_planted_fault_is_found(broken):
    rng = random.Random(1)
    with pytest.raises(StaleEntryError):
        walks(rng, 3_000, broken)
