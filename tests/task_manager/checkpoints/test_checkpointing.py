"""A task manager's side of checkpoints with real stores; what it does in threads waits until the test runs it."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from task_manager.checkpoints import checkpointing
from task_manager.checkpoints.checkpointing import CheckpointParticipant
from tests.weir.state.state_peer import serving
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.errors import CheckpointError, ConnectionLostError, InputError, StateError
from weir.protocol.checkpoints.checkpoint_model import ID_STRIDE
from weir.protocol.checkpoints.manifest import image_from_json, part_from_json
from weir.rows.records import InputRows
from weir.rpc.wire import JobIdentity
from weir.state.images.image_publisher import ImagePublisher
from weir.state.layout import encode_key
from weir.state.placement.placed_store import PlacedStore
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.capture import Capture
from weir.types import SubtaskId

SUBTASK, STATE = SubtaskId(2, 0), 1
JOB = JobIdentity("job", "f00d", 1)


class Waiting(Executor):
    """Runs what was submitted when it is told to."""

    def __init__(self):
        self.work = deque()
        self.is_shut_down = False

    def submit(self, call, /, *args):
        if self.is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future = Future()
        self.work.append((future, call, args))
        return future

    def run(self):
        while self.work:
            future, call, args = self.work.popleft()
            try:
                future.set_result(call(*args))
            except BaseException as error:
                future.set_exception(error)

    def shutdown(self, wait=True, *, cancel_futures=False):
        self.is_shut_down = True
        while self.work:
            future, _, _ = self.work.popleft()
            future.cancel()
            future.set_running_or_notify_cancel()


class Control:
    """Implements ``ControlCalls``: notes what is acknowledged."""

    def __init__(self):
        self.parts = []

    def acknowledge(self, identity, parts, is_wanted):
        for it in parts:
            part = part_from_json(orjson.loads(it.part_json)) if it.part_json else None
            self.parts.append((it.subtask, it.checkpoint_id, part, it.failure))


class Side:
    """One task manager with a store."""

    def __init__(self, directory, address, peers=None):
        self.address = address
        self.backend = MemoryBackend()
        self.store = CheckpointStore.open(str(directory / "checkpoints"), "job")
        (directory / address.replace(":", "-") / "snapshots").mkdir(parents=True)
        publisher = ImagePublisher(
            self.store, self.backend, directory / address.replace(":", "-"), f"store-{len(address)}"
        )
        self.threads, self.takers, self.control = Waiting(), Waiting(), Control()
        #: By address.
        self.peers = peers or {}
        self.participant = CheckpointParticipant(
            JOB,
            address,
            self.store,
            publisher,
            self,
            self.control,
            {},
            self.threads,
            self.takers,
        )

    def take(self, address, checkpoint_id):
        """See ``ImagePeers``."""
        if address not in self.peers:
            raise ConnectionLostError(f"task manager {address} gave no image of its store: it is gone")
        return self.peers[address].participant.take_for_peer(checkpoint_id)

    def collect(self, address, image_id):
        """See ``ImagePeers``."""
        peer = self.peers[address]
        peer.threads.run()
        image_json, new_bytes = peer.participant.collect_for_peer(image_id)
        return image_from_json(orjson.loads(image_json)), new_bytes

    def snapshot(self, checkpoint_id, backend=None, captures=(), rows=()):
        part = self.participant.take(SUBTASK, checkpoint_id, {"step": 5}, captures, backend, 3)
        self.participant.deliver(part, rows)
        return part

    def run(self):
        self.takers.run()
        self.threads.run()


@pytest.fixture
def side(tmp_path):
    return Side(tmp_path, "here:1")


def own_state(side):
    backend = PlacedStore(side.backend, side.address, [STATE], lambda address, epochs: None)
    backend.ownership.adopt({0: 1, 1: 1})
    backend.put_many([encode_key(0, STATE, b"k")], [b"v"])
    return backend


def test_a_part_is_told_when_sinks_have_brought_their_rows_to_the_disk(side):
    states = []
    part = side.participant.take(SUBTASK, 7, {"step": 5}, (), None, 3)
    part.sync = lambda: states.append(len(side.control.parts))
    side.participant.deliver(part)
    assert states == []
    side.run()
    assert (states, len(side.control.parts)) == ([0], 1)


def test_a_part_whose_rows_do_not_get_to_the_disk_fails_its_checkpoint(side):
    def fails():
        raise InputError("the disk is full")

    part = side.participant.take(SUBTASK, 7, {"step": 5}, (), None, 3)
    part.sync = fails
    side.participant.deliver(part)
    side.run()
    assert [(id_, made, failure) for _, id_, made, failure in side.control.parts] == [
        (7, None, "the disk is full")
    ]


def test_a_part_has_what_was_captured_and_later_writes_wait_for_its_image(side):
    backend = own_state(side)
    key = encode_key(0, STATE, b"captured")
    part = side.snapshot(7, backend, [Capture(lambda: side.backend.write([(key, b"late")]))])
    assert backend.writes_wait()
    side.takers.run()
    assert not backend.writes_wait()
    side.threads.run()
    ((subtask, checkpoint_id, made, failure),) = side.control.parts
    assert (subtask, checkpoint_id, failure) == (SUBTASK, 7, "")
    assert made.operators == {"step": 5}
    assert made.passed_checkpoint_id == 3
    assert set(made.groups) == {0, 1}
    assert part.own is not None
    assert side.backend.get_many([key]) == [b"late"]
    assert made.groups[0].image_id == made.images[0].image_id


def test_a_subtask_without_state_has_a_part_at_once(side):
    side.snapshot(7)
    side.threads.run()
    assert side.control.parts[0][2].groups == {}


def test_parts_of_several_subtasks_are_made_by_one_thread(side):
    for index in range(3):
        captures = [Capture(lambda: None)] if index else []
        part = side.participant.take(
            SubtaskId(2, index), 7, {}, captures, own_state(side) if index else None, 3
        )
        side.participant.deliver(part)
    side.takers.run()
    assert len(side.threads.work) == 1
    side.threads.run()
    assert [(subtask.subtask_index, failure) for subtask, _, _, failure in side.control.parts] == [
        (0, ""),
        (1, ""),
        (2, ""),
    ]


def test_rows_under_way_go_with_the_part(side):
    batch = pa.record_batch({"n": [1, 2, 3]})
    side.snapshot(7, rows=[InputRows(0, batch)])
    side.threads.run()
    (made,) = [part for _, _, part, _ in side.control.parts]
    assert len(made.rows) == 1
    assert made.new_bytes > 0


def test_a_checkpoint_that_was_given_up_lets_writes_go_on_and_has_no_part(side):
    backend = own_state(side)
    side.snapshot(7, backend)
    assert backend.writes_wait()
    side.participant.ended(7, committed=False)
    assert not backend.writes_wait()
    side.run()
    ((_, _, made, failure),) = side.control.parts
    assert made is None
    assert failure == "checkpoint 7 was given up"


def test_the_end_of_a_checkpoint_of_a_later_control_plane_is_taken_though_its_beginning_was_not_met(side):
    """Where all subtasks have ended nobody is told of beginnings; each control plane goes on with higher numbers."""
    with pytest.raises(CheckpointError, match="was never begun"):
        side.participant.ended(2**62, committed=True)
    side.snapshot(7)
    side.run()
    side.participant.ended(7, committed=True)
    side.participant.ended(7 + 3 * ID_STRIDE, committed=True)
    assert side.participant.ended_id == 7 + 3 * ID_STRIDE
    with pytest.raises(CheckpointError, match="was never begun: the newest that"):
        side.participant.ended(2**63, committed=True)


def test_a_write_that_fails_fails_the_checkpoint_only(side):
    def fails():
        raise CheckpointError("disk full")

    backend = own_state(side)
    side.snapshot(7, backend, [Capture(fails)])
    side.run()
    assert side.control.parts[0][3] == "disk full"
    assert not backend.writes_wait()
    side.snapshot(8, backend)
    side.run()
    assert side.control.parts[1][3] == ""


def test_groups_at_a_peer_are_in_an_image_of_its_store(tmp_path):
    peer = Side(tmp_path, "there:22")
    peer.backend.write([(encode_key(1, STATE, b"k"), b"v")])
    side = Side(tmp_path, "here:1", peers={})
    with serving(peer.backend) as served:
        side.peers[served.address] = peer
        backend = PlacedStore(side.backend, side.address, [STATE], served.connect)
        backend.ownership.adopt({0: 1})
        backend.ownership.adopt({1: 2}, served.address)
        side.snapshot(7, backend)
        side.run()
        made = side.control.parts[0][2]
        assert made.groups[0].image_id != made.groups[1].image_id
        assert {image.image_id for image in made.images} == {place.image_id for place in made.groups.values()}
        del side.peers[served.address]
        side.snapshot(8, backend)
        side.run()
        assert f"{served.address} gave no image of its store" in side.control.parts[1][3]


def test_an_image_that_nobody_asked_for_is_not_collected(side):
    with pytest.raises(CheckpointError, match="task manager here:1 has no image nonsense"):
        side.participant.collect_for_peer("nonsense")


def test_images_for_peers_that_gave_up_are_not_kept(side):
    first = side.participant.take_for_peer(1)
    side.threads.run()
    for checkpoint_id in range(2, 40):
        side.participant.take_for_peer(checkpoint_id)
        side.participant.ended(checkpoint_id, committed=False)
    with pytest.raises(CheckpointError, match=f"has no image {first}"):
        side.participant.collect_for_peer(first)
    last = side.participant.take_for_peer(40)
    side.threads.run()
    assert side.participant.collect_for_peer(last)


def test_captures_are_abandoned_when_the_database_has_refused_changes(side):
    """Else the next barrier waits for them without end."""

    class Refusing:
        def took(self, backend, checkpoint_id, passed_id):
            raise StateError("the database refuses changes")

    participant = CheckpointParticipant(
        JOB, side.address, side.store, None, side, side.control, {}, side.threads, side.takers, Refusing()
    )
    capture = Capture(lambda: None)
    with pytest.raises(StateError, match="refuses changes"):
        participant.take(SUBTASK, 7, {}, [capture], own_state(side), 3)
    assert capture.has_ended


def test_a_last_part_stays_when_the_checkpoint_is_given_up_whose_number_its_files_have(side):
    """The job would start again: nobody makes it a second time."""
    part = side.participant.take(SUBTASK, 0, {}, [], own_state(side), 3)
    side.participant.deliver(part)
    side.takers.run()
    side.participant.ended(4, committed=False)
    side.run()
    [(_, checkpoint_id, delivered, failure)] = side.control.parts
    assert (checkpoint_id, failure) == (0, "")
    assert [image.image_id.split("-")[-2] for image in delivered.images] == ["4"]


def test_last_parts_are_told_again_to_another_control_plane(side):
    side.snapshot(0)
    side.snapshot(7)
    side.run()
    side.control.parts.clear()
    side.participant.deliver_last_parts_again()
    side.run()
    assert [(subtask, number) for subtask, number, _, _ in side.control.parts] == [(SUBTASK, 0)]
    assert side.control.parts[0][2].finished


def test_that_there_is_no_last_part_is_told_again_too(side):
    side.participant.fail(SUBTASK, 0, "no space left on device")
    side.run()
    side.control.parts.clear()
    side.participant.deliver_last_parts_again()
    side.run()
    assert side.control.parts == [(SUBTASK, 0, None, "no space left on device")]


def test_a_peer_is_told_that_an_image_takes_too_long(side, monkeypatch):
    monkeypatch.setattr(checkpointing, "COLLECT_TIMEOUT_S", 0.01)
    image_id = side.participant.take_for_peer(7)
    with pytest.raises(
        CheckpointError, match=f"here:1 has not brought its image {image_id} into .* within 0.01 s"
    ):
        side.participant.collect_for_peer(image_id)


def test_a_new_deployment_does_not_wait_for_an_upload_without_end(side, monkeypatch):
    monkeypatch.setattr(checkpointing, "_GIVE_UP_S", 0.1)
    answers, begun = threading.Event(), threading.Event()

    def sync():
        begun.set()
        answers.wait()

    threads = ThreadPoolExecutor(1)
    participant = CheckpointParticipant(
        JOB, side.address, side.store, None, side, side.control, {}, threads, side.takers
    )
    part = participant.take(SUBTASK, 0, {}, [], None, 3)
    part.sync = sync
    participant.deliver(part)
    assert begun.wait(30)
    try:
        participant.close()
        with pytest.raises(CheckpointError, match="given up"):
            side.store.publish(Path(__file__), "files/7/a")
    finally:
        answers.set()
        threads.shutdown()


def test_when_the_job_ends_nobody_waits(side):
    backend = own_state(side)
    part = side.participant.take(SUBTASK, 7, {}, [], backend, 3)
    side.participant.close()
    with pytest.raises(CheckpointError, match="the job ends"):
        part.wait()
    assert not backend.writes_wait()
    with pytest.raises(CheckpointError, match="the job ends"):
        side.participant.take(SUBTASK, 8, {}, [], backend, 3)
    assert not backend.writes_wait()
