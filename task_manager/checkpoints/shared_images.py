"""The image of the store for all subtasks of a task manager that come to a checkpoint at about the same time.

An image costs some 5 ms of CPU in several threads, whatever is in it: RocksDB writes its memory table out, tables are
linked, small files copied and synced. So whoever is ready waits a moment for the subtasks that were there for the last
checkpoint, and all of them name the same image. Their holds last until it is taken; where one of them has to write
meanwhile, it is taken at once.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from task_manager.checkpoints.checkpoint_parts import HeldImage, Publisher
from weir import threads
from weir.errors import CheckpointError
from weir.state.tables.capture import WriteHold

#: So long those who are ready wait for the others, at most.
_WAIT_S = 0.03


@dataclass(frozen=True, slots=True)
class Joining:
    """A subtask that has written what it captured, and may write nothing else before the image is taken."""

    hold: WriteHold
    #: Told of the image, and whether this subtask is the one to count its bytes; or of what failed.
    taken: Callable[[HeldImage, bool], None]
    failed: Callable[[BaseException], None]


class SharedImages:
    """The images that a deployed job's subtasks share; any thread may call it."""

    def __init__(self, publisher: Publisher, takers: Executor, wait_s: float = _WAIT_S) -> None:
        """``takers`` runs what waits and takes the images; ``wait_s``: for the others, at most."""
        self._publisher = publisher
        self._takers = takers
        self._wait_s = wait_s
        self._condition = threads.condition()
        self._joining: dict[int, list[Joining]] = {}
        #: The checkpoint that the last one joined, how many have, and how many joined the one before it.
        self._number, self._joined, self._expected = 0, 0, 1
        #: Checkpoints up to this number are over.
        self._ended_id = 0

    def join(self, checkpoint_id: int, joining: Joining) -> None:
        """Take part in the next image of a checkpoint; returns at once."""
        joining.hold.when_awaited(self._look)
        with self._condition:
            is_next = checkpoint_id != self._number
            if is_next:
                self._number, self._joined, self._expected = checkpoint_id, 0, max(self._joined, 1)
            self._joined += 1
            waiting = self._joining.setdefault(checkpoint_id, [])
            waiting.append(joining)
            if is_next or self._is_due(checkpoint_id):
                self._condition.notify_all()
            if len(waiting) > 1:
                return
        try:
            running = self._takers.submit(self._take, checkpoint_id)
        except RuntimeError:
            self._give_up(checkpoint_id)
        else:
            running.add_done_callback(lambda future: self._over(checkpoint_id, future))

    def ended(self, checkpoint_id: int) -> None:
        """A checkpoint is over: nobody waits for it."""
        with self._condition:
            self._ended_id = max(self._ended_id, checkpoint_id)
            self._condition.notify_all()

    def _look(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def _take(self, checkpoint_id: int) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._is_due(checkpoint_id), self._wait_s)
            waiting = self._joining.pop(checkpoint_id, [])
        try:
            image = self._publisher.take(checkpoint_id)
        except BaseException as error:
            for joining in waiting:
                joining.failed(error)
            return
        for index, joining in enumerate(waiting):
            try:
                joining.taken(image, index == 0)
            except BaseException as error:
                joining.failed(error)

    def _is_due(self, checkpoint_id: int) -> bool:
        """Return whether all are here, somebody has to write, or nobody wants the image any more."""
        if self._number != checkpoint_id or checkpoint_id <= self._ended_id:
            return True
        is_awaited = any(joining.hold.is_awaited for joining in self._joining[checkpoint_id])
        return is_awaited or self._joined >= self._expected

    def _over(self, checkpoint_id: int, future: Future[None]) -> None:
        if future.cancelled():
            self._give_up(checkpoint_id)

    def _give_up(self, checkpoint_id: int) -> None:
        with self._condition:
            waiting = self._joining.pop(checkpoint_id, [])
        for joining in waiting:
            joining.failed(CheckpointError("the job ends"))
