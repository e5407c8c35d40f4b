"""Checkpoints that are open for questions, a few at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from task_manager.state.job_database import JobDatabase
from weir.clock import Clock
from weir.protocol.checkpoints.manifest import Manifest
from weir.protocol.queries import QueryError, Question
from weir.savepoints.checkpoint_reading import OpenCheckpoint
from weir.state.images.image_stores import Images

#: Checkpoints that are open at a time; those that nobody has asked for so long are closed.
OPEN_MAX = 3
IDLE_S = 60.0


class OpenCheckpoints:
    """The checkpoints that are open, of one job on one task manager. Methods may be called from any thread."""

    def __init__(
        self,
        read_manifest: Callable[[str], Manifest],
        images_beside: Callable[[], Images | None],
        clock: Clock,
        database: JobDatabase | None = None,
    ) -> None:
        """``read_manifest``: of the job's checkpoint store; ``images_beside``: see ``JobStores``."""
        self._database = database
        self._read_manifest = read_manifest
        self._images_beside = images_beside
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[int, OpenCheckpoint] = {}
        self._is_closed = False

    def check_question(self, question: Question, state_id: int) -> None:
        """Called before a question about a range of keys is answered, of whatever moment.

        Raises:
            QueryError: 400: the database that has the state cannot answer it, or may not.
        """
        if self._database is not None:
            self._database.check_question(question, state_id)

    @contextmanager
    def using(self, checkpoint_id: int, manifest_path: str) -> Iterator[OpenCheckpoint]:
        """A checkpoint, which is opened if it is not; without a path it must be open.

        Raises:
            QueryError: 410: it is not open any more; 503: too many are in use.
            CheckpointError: it cannot be read, as it has expired meanwhile.
        """
        with self._lock:
            self._close_idle()
            found = self._open.get(checkpoint_id)
            if found is None:
                found = self._opened(manifest_path)
                self._open[checkpoint_id] = found
            found.uses += 1
        try:
            yield found
        finally:
            with self._lock:
                found.uses -= 1
                found.used_s = self._clock.monotonic_s()
                if self._is_closed and not found.uses:
                    found.close()

    def _opened(self, manifest_path: str) -> OpenCheckpoint:
        if not manifest_path or self._is_closed:
            raise QueryError(410, "the checkpoint of this continuation is not open any more: begin again")
        images = self._images_beside()
        if images is None:
            raise QueryError(409, "the job makes no checkpoints: ask for consistency=latest")
        self._make_room()
        manifest = self._read_manifest(manifest_path)
        images.register(image for part in manifest.parts for image in part.images)
        return OpenCheckpoint(manifest, images, self._database)

    def _close_idle(self) -> None:
        now_s = self._clock.monotonic_s()
        for checkpoint_id, found in list(self._open.items()):
            if not found.uses and now_s - found.used_s > IDLE_S:
                self._open.pop(checkpoint_id).close()

    def _make_room(self) -> None:
        """Close the one that was used longest ago, if there are too many."""
        if len(self._open) < OPEN_MAX:
            return
        unused = [checkpoint_id for checkpoint_id, found in self._open.items() if not found.uses]
        if not unused:
            raise QueryError(503, f"{OPEN_MAX} checkpoints are being read: try again")
        oldest = min(unused, key=lambda checkpoint_id: self._open[checkpoint_id].used_s)
        self._open.pop(oldest).close()

    def tidy(self) -> None:
        """Close those that nobody asks any more: their files take room on the disk."""
        with self._lock:
            self._close_idle()

    def close(self) -> None:
        """Close all that are not in use, the others when they are not any more; the job ends."""
        with self._lock:
            self._is_closed = True
            for found in self._open.values():
                if not found.uses:
                    found.close()
            self._open.clear()
