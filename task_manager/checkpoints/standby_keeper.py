"""Keeps the state of other task managers on this disk, so as to take over from them without fetching it then.

It is a favour (docs/design/0020): whatever is missing, late, damaged or has no room here, a takeover fetches, as it
would without. Files come in a thread of this module, at a bounded rate, and only while the disk has room.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from weir import threads
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.checkpoints.files import DRAFT_PREFIX
from weir.clock import Clock
from weir.errors import CheckpointError, WeirError
from weir.protocol.checkpoints.manifest import FileRef
from weir.protocol.checkpoints.restore_plan import images_of
from weir.protocol.job.disk_watch import reserved_bytes
from weir.state.images.local_copies import LocalCopies
from weir.types import SubtaskId

log = logging.getLogger(__name__)

#: Small files are fetched together, as many and as much at a time.
_FILES_MAX, _BYTES_MAX = 32, 4 << 20


@dataclass(frozen=True)
class StandbyOrder:
    """What to keep; the latest one counts."""

    checkpoint_id: int
    #: In the checkpoint store of the job.
    manifest_path: str
    #: Whose state; none: nothing is kept any more.
    subtasks: tuple[SubtaskId, ...]
    #: ``controlPlane.disk_hold_bytes``.
    disk_hold_bytes: int = 0


@dataclass(frozen=True)
class StandbyProgress:
    """What is here, as heartbeats tell it."""

    #: The latest checkpoint of which everything is here that was ordered; 0: of none.
    checkpoint_id: int = 0
    held_bytes: int = 0
    #: Of the checkpoint that was ordered last.
    missing_bytes: int = 0
    #: Why nothing more is fetched, one line; empty: nothing is wrong.
    problem: str = ""


class StandbyKeeper:
    """Follows the orders of one deployed job; any thread may call it. What an earlier deployment kept is still there.

    Args:
        store: the checkpoint store of the job; None: it makes no checkpoints.
        copies: where files are kept; None: they come as links when they are needed, so none is kept.
        bytes_per_second: bound of the rate at which files are fetched.
        clock: of the rate.
        disk_room: returns free bytes and size of the disk that has a directory.
    """

    def __init__(
        self,
        store: CheckpointStore | None,
        copies: LocalCopies | None,
        bytes_per_second: int,
        clock: Clock,
        disk_room: Callable[[Path], tuple[int, int]] | None = None,
    ) -> None:
        self._store = store
        self._copies = copies
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._disk_room = disk_room or _disk_room
        self._changed = threads.condition()
        self._order: StandbyOrder | None = None
        self._progress = StandbyProgress()
        #: Whose state of the checkpoint in ``_progress`` is here.
        self._kept: tuple[SubtaskId, ...] = ()
        self._closed = False
        self._thread: threads.Running | None = None

    @property
    def progress(self) -> StandbyProgress:
        """What is here now."""
        return self._progress

    @property
    def ordered(self) -> tuple[SubtaskId, ...]:
        """Whose state is to be here, by the latest order."""
        order = self._order
        return () if order is None else order.subtasks

    def keep(self, order: StandbyOrder) -> None:
        """Follow an order; called with every heartbeat, mostly with the same one."""
        if self._store is None or order == self._order:
            return
        if self._copies is None or not (order.subtasks or self._copies.folder.exists()):
            self._order = order
            self._progress = StandbyProgress(order.checkpoint_id if order.subtasks else 0)
            return
        with self._changed:
            if self._closed:
                return
            self._order = order
            if self._thread is None:
                self._thread = threads.start(self._run, "standby")
            self._changed.notify_all()

    def close(self) -> None:
        """Fetch nothing more. It does not wait for the file that is under way, which is dropped when it has come."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # --- in the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        done: StandbyOrder | None = None
        while True:
            with self._changed:
                while not self._closed and self._order is done:
                    self._changed.wait()
                if self._closed:
                    return
                done = self._order
            assert done is not None
            try:
                self._follow(done)
            except (WeirError, OSError) as error:
                self._tell(str(error))
            except Exception:
                log.exception("nothing is kept here for other task managers any more")
                self._progress = replace(
                    self._progress, problem="it failed; the log of this task manager says why"
                )
                return

    def _tell(self, problem: str) -> None:
        """Once for each problem; another attempt comes with the next checkpoint."""
        if problem != self._progress.problem and not self._closed:
            log.warning("the state of other task managers is not kept here: %s", problem)
        self._progress = replace(self._progress, problem=problem)

    def _follow(self, order: StandbyOrder) -> None:
        """Bring what an order names, and let go of everything else.

        Raises:
            WeirError, OSError: a file is gone or damaged, or there is no room for it.
        """
        copies, store = self._copies, self._store
        assert copies is not None
        assert store is not None
        if not order.subtasks:
            copies.keep_only(())
            self._progress = StandbyProgress()
            return
        images = images_of(store.look_at_manifest(order.manifest_path), order.subtasks)
        if self._closed:
            # The next deployment may keep other files here by now.
            return
        files = {file.path: file for image in images.values() for file in image.files.values()}
        copies.keep_only(files.keys())
        missing = [file for file in files.values() if not copies.has(file)]
        missing_bytes = sum(file.size_bytes for file in missing)
        held_bytes = sum(file.size_bytes for file in files.values()) - missing_bytes
        # Of those that were not ordered before nothing may be here.
        known_id = self._progress.checkpoint_id if order.subtasks == self._kept else 0
        self._progress = StandbyProgress(known_id, held_bytes, missing_bytes, self._progress.problem)
        # Tables of a checkpoint are deleted while later ones come: those of the latest one are wanted first.
        is_long = missing_bytes > self._bytes_per_second
        for batch in _batches(missing):
            if self._closed or (is_long and self._order is not order):
                return
            self._fetch(store, copies, batch, order.disk_hold_bytes)
            batch_bytes = sum(file.size_bytes for file in batch)
            held_bytes, missing_bytes = held_bytes + batch_bytes, missing_bytes - batch_bytes
            self._progress = replace(self._progress, held_bytes=held_bytes, missing_bytes=missing_bytes)
        self._kept = order.subtasks
        self._progress = StandbyProgress(order.checkpoint_id, held_bytes)

    def _fetch(
        self, store: CheckpointStore, copies: LocalCopies, batch: Sequence[FileRef], hold_bytes: int
    ) -> None:
        """Fetch files, check them, and wait until the rate allows the next ones.

        Raises:
            CheckpointError: one is gone or damaged, or there is no room.
        """
        size_bytes = sum(file.size_bytes for file in batch)
        copies.folder.mkdir(exist_ok=True)
        free_bytes, disk_bytes = self._disk_room(copies.folder)
        reserved = reserved_bytes(hold_bytes, disk_bytes)
        if free_bytes - size_bytes < reserved:
            raise CheckpointError(
                f"the disk of {copies.folder} has {free_bytes / 2**20:,.0f} MiB free, and {reserved / 2**20:,.0f} MiB "
                "stay free of copies; free some, or lower controlPlane.disk_hold_bytes"
            )
        began_s = self._clock.monotonic_s()
        drafts = [(file, copies.folder / f"{DRAFT_PREFIX}{secrets.token_hex(8)}") for file in batch]
        try:
            store.fetch_all(drafts)
            if self._closed:
                return
            for file, draft in drafts:
                os.replace(draft, copies.at(file.path))
        finally:
            for _, draft in drafts:
                draft.unlink(missing_ok=True)
        left_s = size_bytes / self._bytes_per_second - (self._clock.monotonic_s() - began_s)
        if left_s > 0:
            with self._changed:
                self._changed.wait_for(lambda: self._closed, left_s)


def _batches(files: Sequence[FileRef]) -> Iterator[list[FileRef]]:
    """Files that are fetched together."""
    batch: list[FileRef] = []
    size_bytes = 0
    for file in files:
        if batch and (len(batch) == _FILES_MAX or size_bytes + file.size_bytes > _BYTES_MAX):
            yield batch
            batch, size_bytes = [], 0
        batch.append(file)
        size_bytes += file.size_bytes
    if batch:
        yield batch


def _disk_room(directory: Path) -> tuple[int, int]:
    disk = shutil.disk_usage(directory)
    return disk.free, disk.total
