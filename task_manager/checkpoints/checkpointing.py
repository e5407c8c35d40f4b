"""A task manager's side of checkpoints: takes images of stores, publishes parts, tells the control plane.

Subtasks call :meth:`CheckpointParticipant.take` and :meth:`~CheckpointParticipant.deliver` in their threads; what is
slow (copying files, calls to the control plane) happens in others. See docs/design/0002.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future
from functools import partial
from typing import Any, TypeVar

import orjson

from task_manager.checkpoints.acknowledgements import Acknowledgements
from task_manager.checkpoints.checkpoint_parts import ChangesApplied, HeldImage, Publisher, TakenPart
from task_manager.checkpoints.image_calls import COLLECT_TIMEOUT_S, ImagePeers
from task_manager.checkpoints.shared_images import Joining, SharedImages
from task_manager.link.control_calls import ControlCalls, MadePart
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.checkpoints.file_checks import FileChecks
from weir.checkpoints.rows import save_rows
from weir.errors import CheckpointError, WeirError
from weir.protocol.checkpoints.checkpoint_model import ID_STRIDE
from weir.protocol.checkpoints.manifest import (
    FileRef,
    GroupPlace,
    Json,
    StoreImage,
    SubtaskPart,
    image_to_json,
    part_to_json,
)
from weir.rows.records import InputRows
from weir.rpc.wire import JobIdentity
from weir.state.images.image_client import image_ids_of, is_image, joined_ids
from weir.state.placement.group_places import HeldGroup
from weir.state.placement.placed_store import PlacedStore
from weir.state.tables.capture import Capture, WriteHold
from weir.subtask_names import NameOf, numbered
from weir.threads import wait
from weir.types import SubtaskId

log = logging.getLogger(__name__)

Result = TypeVar("Result")

#: How long uploads that are given up may take to end. Less than the control plane waits for a new deployment.
_GIVE_UP_S = 15.0

#: A checkpoint that ends cannot have a number so far above all that were met here: of a thousand control planes, one
#: after the other. Where all subtasks have ended no checkpoint is met that begins.
_AHEAD_MAX = 1_000 * ID_STRIDE

#: Images that peers asked for are kept until so many later checkpoints have ended.
_FOR_PEERS_CHECKPOINTS = 8


class CheckpointParticipant:
    """The part of a deployed job in checkpoints. Without a store only last parts are reported, for sinks to deliver."""

    def __init__(
        self,
        identity: JobIdentity,
        address: str,
        store: CheckpointStore | None,
        publisher: Publisher | None,
        peers: ImagePeers,
        control: ControlCalls,
        restored_images: Mapping[str, StoreImage],
        threads: Executor,
        takers: Executor,
        applying: ChangesApplied | None = None,
        name_of: NameOf = numbered,
        checks: FileChecks | None = None,
    ) -> None:
        """The executors are shut down with this.

        Args:
            identity: of the job.
            address: of this task manager.
            store: where parts and images go; None: there are no checkpoints.
            publisher: of images of the store here.
            peers: other task managers.
            control: the control plane.
            restored_images: those that the job was restored from, by id.
            threads: publishes parts, which may be slow.
            takers: takes images; apart from ``threads``, because subtasks may have to wait for it.
            applying: brings changes of complete checkpoints into a database that keeps the state.
            name_of: what subtasks are called in the log.
            checks: of the files from which the store here was opened; None: there are none.
        """
        self._identity = identity
        self._address = address
        self._store = store
        self._publisher = publisher
        self._peers = peers
        self._control = control
        self._restored_images = restored_images
        self._threads = threads
        self._takers = takers
        self._applying = applying
        self._name_of = name_of
        self._checks = checks
        self._shared = None if publisher is None else SharedImages(publisher, takers)
        self._acknowledgements = Acknowledgements(self._acknowledge, self._run)
        self._lock = threading.Lock()
        #: What keeps subtasks from writing, with the checkpoint's number.
        self._holds: list[tuple[int, WriteHold]] = []
        #: Images that peers asked for, by id, with the checkpoint's number, until they are collected.
        self._for_peers: dict[str, tuple[int, Future[tuple[StoreImage, int]]]] = {}
        #: Checkpoints up to this number are over.
        self.ended_id = 0
        #: The highest number that a checkpoint had, or 0: none was met here.
        self._begun_id = 0
        self._closed = False
        #: What is done in ``threads``.
        self._under_way: set[Future[Any]] = set()
        #: Of subtasks that have ended, or why there is none: another control plane needs to be told again.
        self._last_parts: dict[SubtaskId, tuple[bytes, str]] = {}

    # --- called by subtasks ----------------------------------------------------------------------------------

    def take(
        self,
        subtask: SubtaskId,
        checkpoint_id: int,
        operators: Mapping[str, Json],
        captures: Sequence[Capture],
        backend: PlacedStore | None,
        passed_id: int,
    ) -> TakenPart:
        """Note where the state of a subtask is; another thread writes what was captured and takes images of the stores.

        Until then, the subtask's later writes wait; it rarely has any, because its caches hold them.

        Raises:
            CheckpointError: the job ends; or a file from which the state was restored is damaged.
            WeirError: the database that keeps the state has refused changes for good.
        """
        self.begun(checkpoint_id)
        part = TakenPart(subtask, checkpoint_id, operators, passed_id)
        if backend is None:
            return part
        try:
            if self._checks is not None:
                self._checks.raise_damage()
            if self._applying is not None:
                self._applying.took(backend, checkpoint_id, passed_id)
            hold = backend.hold_writes()
        except BaseException:
            # The next barrier would wait for them without end.
            for capture in captures:
                capture.abandon()
            raise
        # The files of a last part belong to the next checkpoint: under number 0 they would count as expired.
        number = checkpoint_id or max(self.ended_id, passed_id) + 1
        with self._lock:
            self._holds = [(id_, held) for id_, held in self._holds if not held.is_released]
            self._holds.append((number, hold))

        def end(_: object) -> None:
            for capture in captures:
                capture.abandon()
            hold.release()

        taking: Future[None] = Future()
        taking.add_done_callback(end)
        part.taking = taking
        try:
            running = self._takers.submit(self._take_images, part, number, captures, backend, hold)
        except RuntimeError as error:
            taking.set_exception(CheckpointError("the job ends"))
            raise CheckpointError("the job ends") from error
        running.add_done_callback(partial(_pass_failure, taking))
        return part

    def _take_images(
        self,
        part: TakenPart,
        checkpoint_id: int,
        captures: Sequence[Capture],
        backend: PlacedStore,
        hold: WriteHold,
    ) -> None:
        """Write what was captured; ``part.taking`` is done when images of the stores are taken, too."""
        assert part.taking is not None
        hold.pass_here()
        for capture in captures:
            capture.write()
        backend.flush()
        if self._publisher is None or self._shared is None:
            part.taking.set_result(None)
            return
        if 0 < part.checkpoint_id <= self.ended_id:
            raise CheckpointError(f"checkpoint {checkpoint_id} was given up")
        # In this order, and see the design note: what was captured may hide keys of a peer (tombstones), and a key only
        # ever moves from a peer's store to the own one.
        places = backend.ownership.held()
        for held in places.values():
            if held.address and not is_image(held.address) and held.address not in part.peers:
                part.peers[held.address] = self._peers.take(held.address, checkpoint_id)
        if all(held.kind == "remote" for held in places.values()):
            self._place_groups(part, places)
        elif part.checkpoint_id == 0:
            # It counts for whichever checkpoint comes to be complete, and its subtask waits for it.
            part.own = self._publisher.take(checkpoint_id, stays=True)
            self._place_groups(part, places)
        else:

            def taken(image: HeldImage, counts: bool) -> None:
                part.own, part.counts_own = image, counts
                backend.image_taken(checkpoint_id)
                self._place_groups(part, places)

            self._shared.join(checkpoint_id, Joining(hold, taken, part.taking.set_exception))

    def _place_groups(self, part: TakenPart, places: Mapping[int, HeldGroup]) -> None:
        """Note where each key group's state is; all images are taken."""
        assert part.taking is not None
        own_id = part.own.image_id if part.own is not None else ""
        bases: set[str] = set()
        here = GroupPlace(own_id)
        for group, held in places.items():
            if not (held.address or held.tombstones or held.kind == "remote"):
                # One object for all: this is the case of thousands, each second.
                part.groups[group] = here
                continue
            there = part.peers.get(held.address, "")
            if is_image(held.address):
                there = joined_ids(held.address)
                bases.update(image_ids_of(held.address))
            gone = tuple(key.hex() for key in held.tombstones)
            part.groups[group] = (
                GroupPlace(there) if held.kind == "remote" else GroupPlace(own_id, there, gone)
            )
        part.bases = [self._restored_images[image_id] for image_id in sorted(bases)]
        part.taking.set_result(None)

    def deliver(self, part: TakenPart, rows: Sequence[InputRows] = ()) -> None:
        """Publish a part and tell the control plane; ``rows`` were under way to the subtask."""
        rows = [*part.waiting, *rows]
        if part.taking is None:
            self._deliver(part, rows)
        else:
            part.taking.add_done_callback(lambda _: self._deliver(part, rows))

    def _deliver(self, part: TakenPart, rows: Sequence[InputRows]) -> None:
        """The images are taken, or could not be."""
        work = partial(self._publish, part, rows)
        if rows or part.peers or part.checkpoint_id == 0:
            # It may take long, and others do not wait for it.
            self._submit(part.subtask, part.checkpoint_id, work)
        elif not self._closed:
            make = partial(self._make, part.subtask, part.checkpoint_id, work)
            self._acknowledgements.gather(part.checkpoint_id, make)

    def fail(self, subtask: SubtaskId, checkpoint_id: int, cause: str) -> None:
        """A subtask cannot give its part."""
        self._submit(subtask, checkpoint_id, lambda: self._raise(cause))

    # --- called by the server --------------------------------------------------------------------------------

    def take_for_peer(self, checkpoint_id: int) -> str:
        """Take an image of the store here, for an owner elsewhere; returns its id.

        Raises:
            WeirError: the store cannot be noted.
        """
        if self._publisher is None:
            raise CheckpointError(f"task manager {self._address} has no checkpoint store")
        # It may be for a last part, and it is published at once.
        pending = self._publisher.take(checkpoint_id, stays=True)
        self._for_peers[pending.image_id] = checkpoint_id, self._start(pending.publish)
        return pending.image_id

    def collect_for_peer(self, image_id: str) -> tuple[bytes, int]:
        """Wait until an image is published; returns it as JSON, and the bytes that were written.

        Raises:
            WeirError: it could not be published.
        """
        kept = self._for_peers.pop(image_id, None)
        if kept is None:
            raise CheckpointError(f"task manager {self._address} has no image {image_id}")
        try:
            image, new_bytes = kept[1].result(COLLECT_TIMEOUT_S)
        except TimeoutError:
            raise CheckpointError(
                f"task manager {self._address} has not brought its image {image_id} into the checkpoint store within "
                f"{COLLECT_TIMEOUT_S:g} s; look whether that is slow"
            ) from None
        except CancelledError:
            raise CheckpointError(f"task manager {self._address}: the job ends") from None
        return orjson.dumps(image_to_json(image)), new_bytes

    def begun(self, checkpoint_id: int) -> None:
        """The control plane has begun a checkpoint; called before any subtask is told."""
        self._begun_id = max(self._begun_id, checkpoint_id)

    def ended(self, checkpoint_id: int, *, committed: bool) -> None:
        """The control plane has ended a checkpoint.

        Raises:
            CheckpointError: none of this number can have begun; taken for ended, it would end all that come.
        """
        newest_id = max(self.ended_id, self._begun_id)
        if checkpoint_id > newest_id + _AHEAD_MAX:
            raise CheckpointError(
                f"checkpoint {checkpoint_id} was never begun: the newest that task manager {self._address} has met is "
                f"{newest_id}"
            )
        self.ended_id = max(self.ended_id, checkpoint_id)
        with self._lock:
            over = [hold for number, hold in self._holds if number <= checkpoint_id]
        for hold in over:
            hold.release()
        # Whoever asked for them has given up. A last part is asked for under the next number, and collected at once.
        forgotten_id = self.ended_id - _FOR_PEERS_CHECKPOINTS
        for image_id, (number, _) in list(self._for_peers.items()):
            if number <= forgotten_id:
                self._for_peers.pop(image_id, None)
        if self._applying is not None:
            self._applying.ended(checkpoint_id, committed=committed)
        if self._shared is not None:
            self._shared.ended(checkpoint_id)
        if self._publisher is not None:
            if committed:
                self._publisher.committed(checkpoint_id)
            else:
                self._publisher.aborted(checkpoint_id)

    def deliver_last_parts_again(self) -> None:
        """Another control plane has taken over."""
        for subtask, (part_json, failure) in list(self._last_parts.items()):
            again = partial(self._raise, failure) if failure else partial(bytes, part_json)
            self._submit(subtask, 0, again)

    def close(self) -> None:
        """Give up what is under way: nobody needs its uploads any more."""
        self._closed = True
        if self._store is not None:
            self._store.give_up()
        self._takers.shutdown(wait=True, cancel_futures=True)
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            under_way = list(self._under_way)
        if not wait(under_way, _GIVE_UP_S):
            # What they bring has names that nobody else uses.
            log.warning(
                "uploads to the checkpoint store did not end within %g s; they are left alone", _GIVE_UP_S
            )

    # --- parts -----------------------------------------------------------------------------------------------

    def _publish(self, part: TakenPart, rows: Sequence[InputRows]) -> bytes:
        part.wait()
        if part.sync is not None:
            part.sync()
        if self._checks is not None:
            self._checks.settle()
        images = list(part.bases)
        new_bytes = 0
        for address, image_id in part.peers.items():
            image, size_bytes = self._peers.collect(address, image_id)
            images.append(image)
            new_bytes += size_bytes
        if part.own is not None:
            image, size_bytes = part.own.publish()
            images.append(image)
            new_bytes += size_bytes if part.counts_own else 0
        saved = self._save_rows(part, rows) if rows else ()
        finished = SubtaskPart(
            part.subtask,
            part.groups,
            tuple(images),
            saved,
            part.operators,
            new_bytes + sum(file.size_bytes for file in saved),
            finished=part.checkpoint_id == 0,
            passed_checkpoint_id=part.passed_id,
            counts=part.counts,
        )
        return orjson.dumps(part_to_json(finished))

    def _save_rows(self, part: TakenPart, rows: Sequence[InputRows]) -> tuple[FileRef, ...]:
        assert self._store is not None
        name = f"rows-{part.subtask.stage_index}-{part.subtask.subtask_index}-{self._identity.generation}"
        return save_rows(self._store, part.checkpoint_id, name, rows)

    def _submit(self, subtask: SubtaskId, checkpoint_id: int, work: Callable[[], bytes]) -> None:
        self._run(lambda: self._acknowledgements.add(self._make(subtask, checkpoint_id, work)))

    def _run(self, work: Callable[[], None]) -> None:
        if not self._closed:
            self._start(work)

    def _start(self, work: Callable[[], Result]) -> Future[Result]:
        """Do something that may be slow in another thread."""
        started = self._threads.submit(work)
        with self._lock:
            self._under_way.add(started)
        started.add_done_callback(self._is_over)
        return started

    def _is_over(self, started: Future[Any]) -> None:
        with self._lock:
            self._under_way.discard(started)

    def _make(self, subtask: SubtaskId, checkpoint_id: int, work: Callable[[], bytes]) -> MadePart:
        """The part that ``work`` returns as JSON, or why there is none."""
        part_json, failure = b"", ""
        try:
            part_json = work()
        except WeirError as error:
            failure = str(error)
        except Exception as error:
            log.exception("a part of checkpoint %d could not be made", checkpoint_id)
            failure = f"{type(error).__name__}: {error}"
        if checkpoint_id == 0:
            self._last_parts[subtask] = part_json, failure
        if failure:
            # Nobody waits for a part of a checkpoint that is over.
            level = logging.DEBUG if 0 < checkpoint_id <= self.ended_id else logging.WARNING
            log.log(level, "checkpoint %d: no part of %s: %s", checkpoint_id, self._name_of(subtask), failure)
        return MadePart(subtask, checkpoint_id, part_json, failure)

    def _acknowledge(self, parts: Sequence[MadePart]) -> None:
        try:
            self._control.acknowledge(self._identity, parts, lambda: not self._closed)
        except WeirError as error:
            log.warning("checkpoint %d: %s", parts[0].checkpoint_id, error)

    @staticmethod
    def _raise(cause: str) -> bytes:
        raise CheckpointError(cause)


def _pass_failure(taking: Future[None], running: Future[None]) -> None:
    """Images are not taken, because what came before failed, or was given up with the job."""
    error = CheckpointError("the job ends") if running.cancelled() else running.exception()
    if error is not None and not taking.done():
        taking.set_exception(error)
