"""The rescale glue of two task managers in one thread: subtasks with real machines, peers that are function calls."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future

import pytest

from task_manager.ownership.group_ownership import GivenGroups, Ownership
from task_manager.rescale.handovers import Handovers
from task_manager.rescale.ownership_reports import OwnershipReports
from task_manager.rescale.rescaling import RescaleParticipant
from task_manager.topology import Topology
from weir.errors import ConnectionLostError, HandshakeError
from weir.protocol.rescale.cache_copy import CopyArrived
from weir.protocol.rescale.rescale_owner import InputEnded, MarkerReceived, OwnerMachine
from weir.protocol.routing import GroupMove, RoutingTable
from weir.state.tables.cached_entries import CachedChanges
from weir.types import SubtaskId

#: Subtask 0 is at "a" and owns all groups; subtask 1 is new, at "b" or at "a".
TABLE = RoutingTable(2, 1, (0,), (0, 0, 0, 0), (1, 1, 1, 1))
OLD, NEW = SubtaskId(2, 0), SubtaskId(2, 1)
MOVES = (GroupMove(1, 0, 1), GroupMove(3, 0, 1))
NOTHING = CachedChanges((), (), ())


def done():
    future: Future[None] = Future()
    future.set_result(None)
    return future


class State:
    """Implements ``GroupState``: where the state of each group is."""

    def __init__(self, address, groups):
        self.locations = dict.fromkeys(groups, address)
        self.flushed, self.aborted = [], []

    def flush_groups(self, groups):
        self.flushed += groups

    def give_groups(self, version, groups):
        return GivenGroups({group: self.locations.pop(group) for group in groups}, NOTHING)

    def abort_copy(self, version):
        self.aborted.append(version)

    def adopt_groups(self, groups, location):
        self.locations |= dict.fromkeys(groups, location)
        return location


class Owner:
    """Implements ``ports.LocalSubtask``: everything happens at once."""

    group_state = None

    def __init__(self, host, subtask):
        groups = TABLE.groups_of(subtask.subtask_index)
        self.state = State(host.address, groups)
        machine = OwnerMachine(subtask.subtask_index, TABLE, ["up"])
        self.ownership = Ownership(
            machine, self.state, host.rescaling.reports_of(subtask), lambda rows: None, {0}
        )
        self.is_over = False
        self.failure: BaseException | None = None
        host.subtasks[subtask] = self

    def tell(self, event):
        return self.post(lambda: self.ownership.handle(event))

    def post(self, command):
        if self.is_over:
            return None
        try:
            command()
        except Exception as error:
            self.failure = error
        return done()


class Nowhere:
    """Implements the ports that these tests do not need."""

    def __init__(self):
        self.copied, self.completed, self.switched = [], [], []

    def copy(self, subtasks, version, moves):
        self.copied.append((tuple(subtasks), version))

    def complete(self, target, version, groups, changes):
        self.completed.append((target, version, dict(groups)))

    def switch(self, subtask, stage_index, version, topology, retiring):
        self.switched.append((subtask, stage_index, version, tuple(retiring)))
        return [done()]

    def bytes_pulled(self, subtask):
        return 7

    def adopted(self, subtask):
        return lambda group_state: None

    def close(self):
        pass


class Host:
    """One task manager; what it would do in threads waits in :attr:`work`."""

    def __init__(self, address, network, shipping=None, relinks=None):
        self.address, self.network = address, network
        network[address] = self
        self.subtasks, self.locations = {}, {}
        self.work = deque()
        self.changes = 0
        self.nowhere = Nowhere()
        self.reports = OwnershipReports(address, self.changed)
        handovers = Handovers(
            address,
            self.subtasks,
            self.locations,
            self,
            self.nowhere,
            shipping,
            self.reports,
            self.work.append,
            relinks,
        )
        self.handovers = handovers
        self.rescaling = RescaleParticipant(
            address,
            self.subtasks,
            self.locations,
            self.nowhere,
            self.nowhere,
            handovers,
            self.nowhere,
            self.reports,
            self.nowhere.close,
        )

    def changed(self):
        self.changes += 1

    def hand_over(self, address, target, handover, bytes_shipped, on_failure):
        try:
            self.network[address].rescaling.receive(target, handover, bytes_shipped)
        except (HandshakeError, KeyError) as error:
            on_failure(ConnectionLostError(f"{address} did not take key groups over: {error}"))

    def run(self):
        while self.work:
            self.work.popleft()()

    def report(self, subtask):
        reports = [
            report
            for report in self.rescaling.reports()
            if report.subtask.subtask_index == subtask.subtask_index
        ]
        return reports[0] if reports else None


def prepare(host, version=2, address="b"):
    locations = {OLD: "a", NEW: address}
    owners = [subtask for subtask in (OLD, NEW) if subtask in host.subtasks]
    return host.rescaling.prepare(owners, version, MOVES, [], locations)


def reroute(host, version=2):
    owners = [subtask for subtask in (OLD, NEW) if subtask in host.subtasks]
    host.rescaling.reroute([], owners, 2, version, Topology(None, {}, {}), [])


@pytest.fixture
def hosts():
    network = {}
    first, second = Host("a", network), Host("b", network)
    Owner(first, OLD)
    Owner(second, NEW)
    return first, second


def test_groups_go_to_another_task_manager_and_both_tell_of_it(hosts):
    first, second = hosts
    assert prepare(first) == prepare(second) == []
    assert first.nowhere.copied == [((OLD,), 2)]
    assert first.subtasks[OLD].state.flushed == [1, 3]
    reroute(first)
    reroute(second)
    assert not first.work, "it is not aligned yet"
    first.subtasks[OLD].tell(MarkerReceived("up", 2))
    first.run()
    assert first.nowhere.completed == [(NEW, 2, {1: 2, 3: 2})], "the cache goes before its groups"
    assert second.subtasks[NEW].state.locations == {1: "a", 3: "a"}
    report = second.report(NEW)
    assert (list(report.owned_groups), list(report.locations)) == ([1, 3], ["a", "a"])
    assert list(report.complete_groups) == []
    assert report.bytes_moved == 7
    second.reports.completed(NEW, 3)
    assert list(second.report(NEW).complete_groups) == [3]
    assert second.changes == 2


def test_groups_that_stay_on_the_task_manager_are_complete_at_once():
    host = Host("a", {})
    Owner(host, OLD), Owner(host, NEW)
    prepare(host, address="a")
    reroute(host)
    host.subtasks[OLD].tell(MarkerReceived("up", 2))
    host.run()
    assert host.nowhere.completed == []
    assert list(host.report(NEW).complete_groups) == [1, 3]
    assert host.report(NEW).bytes_moved == 0


def test_an_owner_that_has_ended_is_told_of(hosts):
    first, _ = hosts
    first.subtasks[OLD].is_over = True
    assert prepare(first) == [OLD]
    with pytest.raises(HandshakeError, match=r"does not run on task manager a"):
        first.rescaling.abort([SubtaskId(2, 9)], 2)


def test_an_abort_reaches_the_machine_and_what_was_cached(hosts):
    first, second = hosts
    prepare(first)
    first.rescaling.abort([OLD], 2)
    assert first.subtasks[OLD].state.aborted == [2]
    first.subtasks[OLD].tell(InputEnded("up"))
    first.run()
    assert second.subtasks[NEW].state.locations == {}


def test_a_handover_that_is_not_taken_fails_its_owner(hosts):
    first, second = hosts
    prepare(first)
    reroute(first)
    second.subtasks[NEW].is_over = True
    first.subtasks[OLD].tell(MarkerReceived("up", 2))
    first.run()
    assert "b did not take key groups over: subtask 2/1 has ended" in str(first.subtasks[OLD].failure)


class NothingToRelink:
    """Sends changes since a checkpoint, of which there are none."""

    def send(self, source, version, address, groups, changed):
        return []


@pytest.mark.parametrize("error", [HandshakeError("the store is away"), KeyError("a group")])
def test_what_fails_while_the_rest_of_the_cache_is_sent_beside_other_state_fails_the_owner(error):
    network = {}
    first, second = Host("a", network, relinks=NothingToRelink()), Host("b", network)
    Owner(first, OLD), Owner(second, NEW)

    def complete(target, version, groups, changes):
        raise error

    first.nowhere.complete = complete
    prepare(first)
    reroute(first)
    first.subtasks[OLD].tell(MarkerReceived("up", 2))
    first.run()
    assert str(error) in str(first.subtasks[OLD].failure)


def test_an_owner_that_has_ended_meanwhile_tells_it_in_its_report(hosts):
    first, second = hosts
    prepare(first)
    reroute(first)
    first.subtasks[OLD].tell(MarkerReceived("up", 2))
    first.subtasks[OLD].is_over = second.subtasks[NEW].is_over = True
    first.run()
    assert "did not take key groups over" in first.report(OLD).failure
    first.rescaling.forget(OLD, None)
    assert first.report(OLD) is None


def test_nobody_is_told_of_what_fails_when_the_job_ends(hosts):
    first, second = hosts
    prepare(first)
    reroute(first)
    first.subtasks[OLD].tell(MarkerReceived("up", 2))
    first.rescaling.close()
    second.subtasks[NEW].is_over = True
    first.run()
    assert first.subtasks[OLD].failure is None


class Shipping:
    """Implements ``ports.Shipping``."""

    def __init__(self):
        self.there = []

    def ship(self, source, address, groups, state_ids, on_group):
        for group in groups:
            self.there.append(group)
            on_group(group, 100)


def test_with_strategy_local_each_group_follows_its_state_and_a_failure_ends_it():
    network, shipping = {}, Shipping()
    first, second = Host("a", network, shipping), Host("b", network)
    Owner(first, OLD), Owner(second, NEW)
    prepare(first), prepare(second)
    reroute(first)
    first.subtasks[OLD].tell(MarkerReceived("up", 2))
    first.run()
    assert second.subtasks[NEW].state.locations == {1: "b", 3: "b"}
    assert second.report(NEW).bytes_moved == 200
    assert list(second.report(NEW).complete_groups) == [1, 3]
    shipping.there.clear()
    second.subtasks[NEW].is_over = True
    first.handovers.begin(OLD, 3, 1, {0: 2, 2: 2}, GivenGroups({0: "a", 2: "a"}, NOTHING))
    first.run()
    assert shipping.there == [0], "the state of the others stays where it is"
    assert first.subtasks[OLD].failure is not None


def test_upstream_subtasks_are_switched_after_owners_know_that_it_is_certain(hosts):
    first, _ = hosts
    prepare(first)
    up = SubtaskId(1, 0)
    first.rescaling.reroute([up], [OLD], 2, 2, Topology(None, {}, {}), [5])
    assert first.nowhere.switched == [(up, 2, 2, (5,))]
    failed: Future[None] = Future()
    failed.set_exception(RuntimeError("it has failed"))
    first.nowhere.switch = lambda *args: [failed]
    with pytest.raises(HandshakeError, match="ended before it could switch: it has failed"):
        first.rescaling.reroute([up], [OLD], 2, 2, Topology(None, {}, {}), [5])


def test_a_copy_for_a_subtask_without_keyed_state_is_refused(hosts):
    first, _ = hosts
    with pytest.raises(HandshakeError, match="with keyed state is not on task manager a"):
        first.rescaling.take_copy(OLD, CopyArrived(2, {1: 2}), None)
