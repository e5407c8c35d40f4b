"""Cached state that goes ahead of a handover: what a new owner uses of it, and what it must not."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
import pyarrow as pa
import pytest

import weir
from task_manager.ownership.group_state import SubtaskGroupState
from task_manager.rescale.cached_wire import entries_of, put_entries
from tests.weir.state.state_peer import Peer, serving
from weir.author.operator import Operator, OperatorContext
from weir.dataflow.keyed_steps import process_states
from weir.errors import HandshakeError
from weir.operators.keyed.process_operator import KeyedProcessOperator
from weir.operators.keyed.running_aggregates import KeyedAggregateOperator
from weir.protocol.rescale.cache_copy import CopyArrived
from weir.rows.records import with_times
from weir.rpc import control_pb2
from weir.specs import Aggregate, KeyedAggregateSpec, KeyedProcessSpec
from weir.state.placement.placed_store import PlacedStore
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.cached_entries import CachedValues
from weir.state.tables.opened import UNNAMED, StateTables

GROUPS = 8
STATE = 1
KEYS = [f"key-{number}" for number in range(400)]
#: All groups, as the old owner has them and as the new one will.
OLD, NEW = dict.fromkeys(range(GROUPS), 1), dict.fromkeys(range(GROUPS), 2)


class Counts(weir.KeyedProcess):
    """Counts in a state of each kind."""

    number = weir.ValueState(pl.Int64, default=0)
    text = weir.ValueState(pl.String, default="")
    most = weir.ReducingState(pl.Int64, max)
    items = weir.ListState(pl.Int64)
    names = weir.MapState(pl.Int64, pl.Int64)

    def process(
        self, key: tuple[str], row: dict[str, object], context: weir.KeyContext
    ) -> Iterator[dict[str, object]]:
        n = self.number.value = self.number.value + 1
        self.text.value += "x"
        self.most.add(n)
        self.items.append(n)
        self.names[1] = self.names.get(1, 0) + 1
        assert [len(self.text.value), self.most.value, len(self.items), self.names[1]] == [n] * 4
        yield {"n": n}


#: More than the keys have.
BYTES_MAX = 1 << 20


class Owner:
    """A count over a store of its own, of ours or of a user."""

    #: Whether the operator is a user's, with several states.
    is_users = False

    def __init__(self, address: str, peer: Peer, owned: dict[int, int], store: MemoryBackend) -> None:
        self.store = store
        self._count: Operator
        if self.is_users:
            schema = pa.schema({"n": pa.int64()})
            users = KeyedProcessSpec(("k",), Counts, schema, process_states("count", Counts))
            states = {state.name: STATE + number for number, state in enumerate(users.states)}
            self._count = KeyedProcessOperator(users)
        else:
            self._count = KeyedAggregateOperator(KeyedAggregateSpec(("k",), (Aggregate("n", "count"),)))
            states = {UNNAMED: STATE}
        ids = list(states.values())
        backend = PlacedStore(self.store, address, ids, peer.connect, fetches=True)
        self.state = SubtaskGroupState(backend, ids, owned, lambda _: None)
        self.tables = StateTables(backend, 1 << 24, GROUPS)
        declared = self.tables.of("count", states)
        self._count.open(OperatorContext("job", "count", 1, 0, 1, max_parallelism=GROUPS, tables=declared))
        self.state.bind(self.tables)

    @property
    def cached_bytes(self) -> int:
        copies = [table.copy_groups(range(GROUPS), 1000, 1 << 20) for table in self.tables]
        return sum(len(copy) for copy in copies if copy is not None)

    def count(self, keys: list[str]) -> list[int]:
        """The counts that come out."""
        batch = with_times(pa.record_batch({"k": pa.array(keys, pa.string())}), 0, 0)
        return [n for piece in self._count.process(batch) for n in piece.column("n").to_pylist()]


@pytest.fixture(params=["ours", "users"])
def owners(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Owner, Owner, Peer]]:
    monkeypatch.setattr(Owner, "is_users", request.param == "users")
    store = MemoryBackend()
    with serving(store) as peer:
        yield Owner(peer.address, peer, OLD, store), Owner("new:1", peer, {}, MemoryBackend()), peer


def copy_ahead(old: Owner, new: Owner, version: int) -> None:
    old.state.want_copy(version, range(GROUPS))
    for entries in old.state.copy_groups(version, range(GROUPS), BYTES_MAX):
        new.state.take_copy(CopyArrived(version, NEW, at_handover=False), entries)
    old.state.copy_taken(version, range(GROUPS))


def hand_over(old: Owner, new: Owner, version: int, address: str) -> None:
    """As the rescale does it: what changed, the word that it is complete, then the groups."""
    changes = old.state.give_groups(version, range(GROUPS)).cached
    if changes.anew:
        new.state.take_copy(
            CopyArrived(version, dict.fromkeys(changes.anew, 2), anew=True, at_handover=True),
            None,
        )
    meant = dict.fromkeys(changes.groups, 2)
    for entries in changes.entries:
        new.state.take_copy(CopyArrived(version, meant, at_handover=True), entries)
    new.state.take_copy(CopyArrived(version, meant, complete=True, at_handover=True), None)
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
    new.state.take_copy(CopyArrived(3, {0: 2}, complete=True, at_handover=True), None)
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
    old.state.want_copy(2, range(GROUPS))
    late = old.state.copy_groups(2, range(GROUPS), BYTES_MAX)
    old.state.give_groups(2, range(GROUPS))
    new.state.adopt_groups(NEW, peer.address)
    assert new.count(KEYS) == [2] * 400
    for entries in late:
        new.state.take_copy(CopyArrived(2, NEW, anew=True, complete=True, at_handover=True), entries)
    assert new.count(KEYS) == [3] * 400


def test_a_copy_that_was_given_up_and_comes_after_that_of_the_handover_changes_nothing(owners):
    old, new, peer = owners
    old.count(KEYS)
    old.state.want_copy(2, range(GROUPS))
    late = old.state.copy_groups(2, range(GROUPS), BYTES_MAX)
    old.count(KEYS)
    changes = old.state.give_groups(2, range(GROUPS)).cached
    new.state.take_copy(CopyArrived(2, NEW, anew=True, at_handover=True), None)
    for entries in [*changes.entries, *late]:
        given_up = any(entries is each for each in late)
        new.state.take_copy(CopyArrived(2, NEW, at_handover=not given_up), entries)
    new.state.take_copy(CopyArrived(2, NEW, complete=True, at_handover=True), None)
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
