"""Cached state that goes ahead of a handover: what a new owner uses of it, and what it must not."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from task_manager.rescale.cached_wire import entries_of, put_entries
from task_manager.rescale.group_state import SubtaskGroupState
from tests.weir.state.state_peer import Peer, serving
from weir.errors import HandshakeError
from weir.operators.base import OperatorContext
from weir.operators.keyed.running_aggregates import KeyedAggregateOperator
from weir.rpc import control_pb2
from weir.specs import Aggregate, KeyedAggregateSpec
from weir.state.placement.hybrid import HybridBackend
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.cached_entries import CachedValues
from weir.state.tables.opened import one_state

GROUPS = 8
STATE = 1
KEYS = [f"key-{number}" for number in range(400)]
#: All groups, as the old owner has them and as the new one will.
OLD, NEW = dict.fromkeys(range(GROUPS), 1), dict.fromkeys(range(GROUPS), 2)


class Owner:
    """A count over a store of its own."""

    def __init__(self, address: str, peer: Peer, owned: dict[int, int], store: MemoryBackend) -> None:
        self.store = store
        backend = HybridBackend(self.store, address, [STATE], peer.connect, use_migrate=True)
        self.state = SubtaskGroupState(backend, [STATE], owned, lambda _: None)
        spec = KeyedAggregateSpec(("k",), (Aggregate("n", "count"),))
        self._count = KeyedAggregateOperator(spec)
        declared = one_state(backend, STATE, max_parallelism=GROUPS)
        self._count.open(OperatorContext("job", "count", 1, 0, 1, max_parallelism=GROUPS, tables=declared))
        self.state.bind([self._count.state])

    @property
    def cached_bytes(self) -> int:
        entries = self._count.state.copy_groups(range(GROUPS), 1000, 1 << 20)
        return len(entries.key_data)

    def count(self, keys: list[str]) -> list[int]:
        """The counts that come out."""
        batch = pa.record_batch({"k": pa.array(keys, pa.string())})
        return [n for piece in self._count.process(batch) for n in piece.column("n").to_pylist()]


@pytest.fixture
def owners() -> Iterator[tuple[Owner, Owner, Peer]]:
    store = MemoryBackend()
    with serving(store) as peer:
        yield Owner(peer.address, peer, OLD, store), Owner("new:1", peer, {}, MemoryBackend()), peer


def copy_ahead(old: Owner, new: Owner, version: int) -> None:
    old.state.want_copy(version, range(GROUPS))
    for entries in old.state.copy_groups(range(GROUPS)):
        new.state.take_copy(version, NEW, entries, anew=False, complete=False, at_handover=False)
    old.state.copy_taken(version, range(GROUPS))


def hand_over(old: Owner, new: Owner, version: int, address: str) -> None:
    """As the rescale does it: what changed, the word that it is complete, then the groups."""
    changes = old.state.give_groups(version, range(GROUPS)).cached
    if changes.anew:
        new.state.take_copy(
            version, dict.fromkeys(changes.anew, 2), None, anew=True, complete=False, at_handover=True
        )
    meant = dict.fromkeys(changes.groups, 2)
    for entries in changes.entries:
        new.state.take_copy(version, meant, entries, anew=False, complete=False, at_handover=True)
    new.state.take_copy(version, meant, None, anew=False, complete=True, at_handover=True)
    new.state.adopt_groups(NEW, address)


def test_the_new_owner_needs_nothing_of_the_store(owners):
    old, new, peer = owners
    old.count(KEYS[:300])
    copy_ahead(old, new, 2)
    old.count(KEYS[200:])
    hand_over(old, new, 2, peer.address)
    assert new.count(KEYS) == [2] * 200 + [3] * 100 + [2] * 100
    assert new.state.backend.stats().remote_gets == 0


def test_what_was_not_copied_ahead_is_copied_at_the_handover(owners):
    old, new, peer = owners
    old.count(KEYS)
    old.state.want_copy(2, range(GROUPS))
    old.count(KEYS)
    hand_over(old, new, 2, peer.address)
    assert new.count(KEYS) == [3] * 400
    assert new.state.backend.stats().remote_gets == 0


def test_without_a_word_that_it_is_complete_the_store_counts(owners):
    old, new, peer = owners
    old.count(KEYS)
    copy_ahead(old, new, 2)
    old.count(KEYS)
    old.state.give_groups(2, range(GROUPS))
    new.state.adopt_groups(NEW, peer.address)
    assert new.count(KEYS) == [3] * 400


def test_a_copy_for_a_rescale_that_was_aborted_is_void(owners):
    old, new, peer = owners
    old.count(KEYS)
    copy_ahead(old, new, 2)
    old.count(KEYS)
    # The next attempt has nothing to copy but the groups of a few keys, and must not use what came for the first.
    new.state.take_copy(3, {0: 2}, None, anew=False, complete=True, at_handover=True)
    old.state.give_groups(3, range(GROUPS))
    new.state.adopt_groups(NEW, peer.address)
    assert new.count(KEYS) == [3] * 400


def test_an_abort_frees_what_came_at_once(owners):
    old, new, _ = owners
    old.count(KEYS)
    copy_ahead(old, new, 2)
    before_bytes = new.cached_bytes
    for owner in (old, new):
        owner.state.abort_copy(2)
    assert new.cached_bytes < before_bytes
    changes = old.state.give_groups(3, range(GROUPS)).cached
    assert (changes.entries, changes.groups) == ([], [])


def test_what_comes_after_the_handover_changes_nothing(owners):
    old, new, peer = owners
    old.count(KEYS)
    late = old.state.copy_groups(range(GROUPS))
    old.state.give_groups(2, range(GROUPS))
    new.state.adopt_groups(NEW, peer.address)
    assert new.count(KEYS) == [2] * 400
    for entries in late:
        new.state.take_copy(2, NEW, entries, anew=True, complete=True, at_handover=True)
    assert new.count(KEYS) == [3] * 400


def test_a_copy_that_was_given_up_and_comes_after_that_of_the_handover_changes_nothing(owners):
    old, new, peer = owners
    old.count(KEYS)
    late = old.state.copy_groups(range(GROUPS))
    old.state.want_copy(2, range(GROUPS))
    old.count(KEYS)
    changes = old.state.give_groups(2, range(GROUPS)).cached
    new.state.take_copy(2, NEW, None, anew=True, complete=False, at_handover=True)
    for entries in [*changes.entries, *late]:
        given_up = any(entries is each for each in late)
        new.state.take_copy(2, NEW, entries, anew=False, complete=False, at_handover=not given_up)
    new.state.take_copy(2, NEW, None, anew=False, complete=True, at_handover=True)
    new.state.adopt_groups(NEW, peer.address)
    assert new.count(KEYS) == [3] * 400
    assert new.state.backend.stats().remote_gets == 0


def test_arrays_that_do_not_fit_together_are_refused():
    request = control_pb2.TakeCopyRequest(
        cell_count=1, hashes=bytes(16), key_lengths=bytes(8), cells=bytes(8)
    )
    with pytest.raises(HandshakeError, match="do not fit together"):
        entries_of(request)
    request.cells, request.presence, request.key_data = bytes(16), bytes(2), b"abc"
    with pytest.raises(HandshakeError, match="other lengths"):
        entries_of(request)
    assert entries_of(control_pb2.TakeCopyRequest()) is None


def test_values_of_any_length_come_as_they_went():
    sent = CachedValues(5, [b"a", b"", b"ccc"], [b"", None, b"value"])
    request = control_pb2.TakeCopyRequest()
    put_entries(request, sent)
    assert entries_of(request) == sent
    request.value_data += b"more"
    with pytest.raises(HandshakeError, match="other lengths"):
        entries_of(request)


def test_a_message_of_values_is_bounded_in_bytes_and_has_every_entry():
    sent = CachedValues(1, [b"k%d" % index for index in range(9)], [b"v" * 40, None, b"v" * 500] * 3)
    pieces = list(sent.pieces(100, 90))
    assert [len(piece) for piece in pieces] == [2, 1, 2, 1, 2, 1]
    assert [key for piece in pieces for key in piece.keys] == sent.keys
    assert [len(piece) for piece in sent.pieces(4, 1 << 20)] == [4, 4, 1]
