"""The cache goes ahead in parts that rows do not notice."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace

import grpc
import pytest

from task_manager.ownership.group_state import SubtaskGroupState
from task_manager.rescale.cache_copy import CacheCopier
from task_manager.rescale.copy_pace import (
    COPIED_BYTES_MAX,
    COPY_TIMES,
    RELINKED_TIMES,
    CopyTimes,
    needs_round,
    next_part,
    part_bytes_max,
)
from task_manager.rescale.copy_sender import CopySender
from weir.protocol.rescale.cache_copy import CopyArrived
from weir.protocol.routing import GroupMove
from weir.rpc.wire import JobIdentity
from weir.state import layout
from weir.state.placement.placed_store import PlacedStore
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.cached_entries import CachedValues
from weir.state.tables.timers.time_first import time_bytes
from weir.state.tables.timers.timer_table import TimerTable
from weir.state.tables.values.value_table import ValueTable
from weir.testing import ManualClock
from weir.types import SubtaskId

STATE = 3
OWNER, NEW = SubtaskId(1, 0), SubtaskId(1, 1)
#: A value, so large that changes of a few keys are worth a round.
LARGE = b"x" * 20_000
KEYS = [layout.encode_key(group, STATE, b"k%d" % number) for group in range(4) for number in range(100)]


class AtOnce:
    """A mailbox of a subtask that is idle."""

    def post(self, command: Callable[[], None]) -> Future[None]:
        future: Future[None] = Future()
        command()
        future.set_result(None)
        return future


class Busy(AtOnce):
    """A mailbox of a subtask that comes to each command late."""

    def __init__(self, clock: ManualClock, late_ms: float) -> None:
        self._clock, self._late_ms = clock, late_ms

    def post(self, command: Callable[[], None]) -> Future[None]:
        self._clock.advance_ms(self._late_ms)
        return super().post(command)


class Owner:
    """An old owner of four groups, and what the copier sends of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, on_send: Callable[[], bool]) -> None:
        self.store = MemoryBackend()
        backend = PlacedStore(
            self.store, "here:1", [STATE], lambda address: pytest.fail("nothing is elsewhere")
        )
        self.state = SubtaskGroupState(backend, [STATE], dict.fromkeys(range(4), 1), on_adopt=lambda _: None)
        self.table = ValueTable(backend, STATE, 64 << 20)
        self.state.bind([self.table])
        self.change(KEYS, b"early")
        self.sent: list[dict[bytes, bytes | None]] = []
        self.clock = ManualClock()

        def send(sender: CopySender, groups: dict[int, int], cached: list[CachedValues]) -> bool:
            """Rows go on while a part is sent."""
            self.sent.append(
                {key: value for part in cached for key, value in zip(part.keys, part.values, strict=True)}
            )
            return on_send()

        monkeypatch.setattr(CopySender, "send", send)

    def change(self, keys: list[bytes], value: bytes) -> None:
        self.table.write_stored([(key, value) for key in keys], [])

    def copy(self, mailbox: AtOnce | None = None, times: CopyTimes = COPY_TIMES) -> None:
        """Groups 1 to 3 are to go to a new owner."""
        running = SimpleNamespace(
            subtask=SimpleNamespace(mailbox=mailbox or AtOnce()), group_state=self.state
        )
        with grpc.insecure_channel("127.0.0.1:1") as channel:
            copier = CacheCopier(
                JobIdentity("job", "f", 1),
                "here:1",
                {OWNER: running},
                SimpleNamespace(stub=lambda address, make: make(channel)),
                {NEW: "there:1"},
                self.clock,
                copies=True,
                hurries=False,
                times=times,
                sleep=lambda seconds: self.clock.advance_ms(1000 * seconds),
            )
            copier.copy([OWNER], 2, [GroupMove(group, 0, 1) for group in range(1, 4)])


@pytest.mark.parametrize(("times", "bound_s"), [(COPY_TIMES, 3.5), (RELINKED_TIMES, 1.05)])
def test_an_owner_that_is_busy_holds_a_rescale_up_for_a_bounded_time(
    times: CopyTimes, bound_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relinking half of 384 MB took 4.4 s on a busy machine, of which 4 s were what is sent ahead."""

    def on_send() -> bool:
        owner.clock.advance_ms(30)
        owner.change(KEYS, LARGE)
        return True

    owner = Owner(monkeypatch, on_send)
    began_s = owner.clock.monotonic_s()
    late_ms = 40.0
    owner.copy(Busy(owner.clock, late_ms), times)
    assert owner.sent
    # What is under way when the time is over is the last.
    assert owner.clock.monotonic_s() - began_s < bound_s + 3 * late_ms / 1000


@pytest.mark.parametrize("is_taken", [True, False])
def test_what_changes_while_the_cache_is_copied_is_written_too(
    is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all of it is written at once when the rescale is prepared, and rows wait."""

    def on_send() -> bool:
        owner.change(KEYS, b"late")
        return is_taken

    owner = Owner(monkeypatch, on_send)
    owner.copy()
    written = dict(owner.store.scan())
    assert {written[key] for key in KEYS if key[1] > 0} == {b"late"}
    assert not any(key in written for key in KEYS if key[1] == 0)


def test_what_changes_while_the_cache_is_copied_is_copied_until_little_is_left_for_the_handover(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """5 MB were, of a join with 1 KiB a key: rows of the groups waited 0.1 s for them."""
    owner = Owner(monkeypatch, lambda: bool(owner.change(changing.pop() if changing else [], LARGE)) or True)
    of_moved = [key for key in KEYS if key[1] > 0]
    # While the two parts of the first round are sent, and then while what changed is.
    changing = [of_moved[:10], of_moved[:40], of_moved, of_moved]
    owner.copy()
    assert [len(entries) for entries in owner.sent] == [100, 200, 300, 40, 10]
    rest = owner.state.give_groups(2, range(1, 4)).cached
    assert (sum(map(len, rest.entries)), list(rest.groups), list(rest.anew)) == (0, [1, 2, 3], [])


def test_changes_that_the_new_owner_has_not_taken_leave_no_copy_that_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def on_send() -> bool:
        owner.change([KEYS[-1]], LARGE)
        return len(owner.sent) <= 2

    owner = Owner(monkeypatch, on_send)
    owner.copy()
    assert len(owner.sent) == 3
    assert list(owner.state.give_groups(2, range(1, 4)).cached.anew) == [1, 2, 3]


def test_a_command_of_an_earlier_rescale_copies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would count as part of the later one's copy, which another owner has."""
    owner = Owner(monkeypatch, lambda: True)
    owner.copy()
    owner.state.want_copy(3, range(1, 4))
    assert owner.state.copy_groups(2, range(1, 4), 1 << 20) == []
    owner.state.copy_groups(3, range(1, 4), 1 << 20)
    owner.state.copy_taken(3, range(1, 4))
    owner.change(KEYS, b"late")
    assert owner.state.copy_changes(2, range(1, 4)) == ((), [])
    assert len(owner.state.give_groups(3, range(1, 4)).cached.entries[0]) == 300


def test_what_is_copied_is_bounded_by_time_and_by_bytes_and_each_group_gets_its_share() -> None:
    assert part_bytes_max(2, 64, 0, 0.0, 2.0) == COPIED_BYTES_MAX // 32
    # 1 MiB took a tenth of the time, for two groups of 64: the others get what the rest of it allows, or less.
    assert part_bytes_max(2, 62, 1 << 20, 0.2, 1.8) == int(0.8 * 9 * (1 << 20) * 2 / 62)
    assert part_bytes_max(1, 1, COPIED_BYTES_MAX - (1 << 20), 0.1, 1.9) == 1 << 20
    assert part_bytes_max(4, 4, 2 * COPIED_BYTES_MAX, 0.1, 1.9) == 16 << 10
    assert part_bytes_max(4, 4, 1 << 20, 2.0, -0.1) == 16 << 10


def test_changes_go_ahead_while_that_leaves_less_of_them() -> None:
    assert needs_round(5 << 20, 1 << 62)
    assert needs_round(1 << 20, 5 << 20)
    assert not needs_round(4 << 20, 5 << 20)
    assert not needs_round(100 << 10, 5 << 20)


def test_parts_grow_while_they_are_short_and_shrink_when_they_are_long() -> None:
    assert next_part(2, 0.0) == 4
    assert next_part(8, 0.0001) == 16
    assert next_part(8, 0.002) == 8
    assert next_part(8, 0.0025) == 6
    assert next_part(8, 0.1) == 4
    assert next_part(1, 0.1) == 1


def test_the_first_timers_go_with_their_groups_so_that_the_peer_is_not_asked_for_them() -> None:
    store = MemoryBackend()
    old_backend = PlacedStore(store, "here:1", [STATE], lambda address: pytest.fail("nothing is elsewhere"))
    old = SubtaskGroupState(old_backend, [STATE], dict.fromkeys(range(4), 1), on_adopt=lambda _: None)
    timers = TimerTable(old_backend, STATE, 1 << 20, range(4))
    old.bind([timers])
    timers.change({layout.encode_key(2, STATE, time_bytes(7) + b"k"): True})
    assert timers.next_ms() == 7
    old.want_copy(2, range(1, 4))
    assert old.copy_groups(2, range(1, 4), 1 << 20) == []
    old.copy_taken(2, range(1, 4))
    [notes] = old.give_groups(2, range(1, 4)).cached.entries

    new_backend = PlacedStore(
        MemoryBackend(), "new:1", [STATE], lambda address: pytest.fail("the peer is asked"), fetches=True
    )
    new = SubtaskGroupState(new_backend, [STATE], {}, on_adopt=lambda _: None)
    taken = TimerTable(new_backend, STATE, 1 << 20, [])
    new.bind([taken])
    groups = dict.fromkeys(range(1, 4), 2)
    new.take_copy(CopyArrived(2, groups, at_handover=True), notes)
    new.take_copy(CopyArrived(2, groups, at_handover=True, complete=True), None)
    new.adopt_groups(groups, "here:1")
    assert taken.next_ms() == 7
