"""Moving state between stores while the job runs: pulled in the background (hybrid), or shipped beforehand (local)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from weir import threads
from weir.clock import Clock
from weir.errors import StateError, WeirError
from weir.state.api import StateBackend
from weir.state.images.image_client import is_image
from weir.state.placement.group_places import MigratingGroup, state_bounds
from weir.state.placement.placed_store import PlacedStore
from weir.state.placement.remote import RemoteStateClient

log = logging.getLogger(__name__)

#: What is shipped at a time.
SHIP_BYTES = 1 << 20
SHIP_KEYS_MAX = 40_000
#: Less goes as an ordinary write, in one message.
_LOADED_BYTES_MIN = 128 << 10
#: Small groups that are fetched by one call, and their bytes: what comes at once keeps both processes busy at once.
_GROUPS_MAX = 64
_GROUPS_BYTES_MAX = 128 << 10


@dataclass(frozen=True, slots=True)
class MigrationProgress:
    """How far the background migration of a task manager, or of one subtask, has come."""

    groups_total: int = 0
    groups_done: int = 0
    keys: int = 0
    bytes: int = 0
    #: Between the first group that was added and the last one that is complete (or now), ms.
    duration_ms: float = 0.0

    @property
    def complete(self) -> bool:
        """Return whether nothing is left to do."""
        return self.groups_done == self.groups_total


@dataclass(eq=False)
class _Task:
    backend: PlacedStore
    on_complete: Callable[[int], None] | None
    on_error: Callable[[WeirError], None]
    left: int
    total: int
    started_s: float
    keys: int = 0
    bytes: int = 0
    ended_s: float | None = None
    #: Of the latest group that was fetched; None: none was.
    group_bytes: int | None = None


class Migrator:
    """Pulls migrating groups of all subtasks of a task manager, one chunk at a time, in its own thread.

    The group that is wanted most is next; it is finished before another begins. Small groups come several at a time.
    One chunk is in flight at a time, and the rate is bounded, so that records are processed meanwhile.

    Args:
        bytes_per_second: bound of the rate, over all subtasks.
        chunk_bytes: keys and values fetched by one call; other threads wait while it is written.
        clock: of the rate.
    """

    def __init__(self, bytes_per_second: int, chunk_bytes: int, clock: Clock) -> None:
        self._bytes_per_second = bytes_per_second
        self._chunk_bytes = chunk_bytes
        self._clock = clock
        self._changed = threads.condition()
        self._tasks: dict[PlacedStore, _Task] = {}
        self._closed = False
        self._thread: threads.Running | None = None

    def add(
        self,
        backend: PlacedStore,
        *,
        on_complete: Callable[[int], None] | None = None,
        on_error: Callable[[WeirError], None],
    ) -> None:
        """Pull the groups of a subtask that are migrating now and are not known yet; call it after ``adopt``.

        Args:
            backend: the subtask's state.
            on_complete: called in the migrator's thread for each group that is complete here and gone there.
            on_error: called once if a store fails; the subtask's migration stops, and its job must fail.
        """
        with self._changed:
            task = self._tasks.get(backend)
            groups = backend.pull.unsettled_count()
            if task is None or task.left == 0:
                started_s = self._clock.monotonic_s()
                task = _Task(backend, on_complete, on_error, groups, groups, started_s)
                self._tasks[backend] = task
            else:
                task.total += groups - task.left
                task.left = groups
                task.on_complete, task.on_error = on_complete, on_error
            if self._thread is None:
                self._thread = threads.start(self._run, "migrator")
            self._changed.notify_all()

    def progress(self, backend: PlacedStore | None = None) -> MigrationProgress:
        """Return the progress of one subtask's latest migration, or of all of them together."""
        with self._changed:
            tasks = [task for task in self._tasks.values() if backend in (None, task.backend)]
            now_s = self._clock.monotonic_s()
            ends_s = [now_s if task.ended_s is None else task.ended_s for task in tasks]
            started_s = min((task.started_s for task in tasks), default=now_s)
            return MigrationProgress(
                groups_total=sum(task.total for task in tasks),
                groups_done=sum(task.total - task.left for task in tasks),
                keys=sum(task.keys for task in tasks),
                bytes=sum(task.bytes for task in tasks),
                duration_ms=(max(ends_s, default=now_s) - started_s) * 1e3,
            )

    def remove(self, backend: PlacedStore) -> None:
        """Forget a subtask that ends; a chunk in flight may still arrive and is refused by the closed backend."""
        with self._changed:
            self._tasks.pop(backend, None)

    def close(self) -> None:
        """Stop after the chunk in flight; safe to call twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None and not threads.is_current(self._thread):
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or any(t.left for t in self._tasks.values()))
                if self._closed:
                    return
                task = next(task for task in self._tasks.values() if task.left)
            try:
                self._advance(task)
            except WeirError as error:
                self._failed(task, error)
            except Exception as error:
                # Whatever it is: nobody else would notice that this thread has ended.
                log.exception("the migration of keyed state failed")
                self._failed(task, StateError(f"the migration failed: {type(error).__name__}: {error}"))

    def _failed(self, task: _Task, error: WeirError) -> None:
        with self._changed:
            known = self._tasks.pop(task.backend, None) is not None
        if known and not self._closed:
            log.error("the migration of keyed state failed: %s", error)
            task.on_error(error)

    def _advance(self, task: _Task) -> None:
        """Fetch the group that a subtask wants most; of small groups those that it wants most by one call."""
        pull = task.backend.pull
        together_bytes = min(self._chunk_bytes, _GROUPS_BYTES_MAX)
        groups = wanted_next(pull.migrating(), together_bytes, task.group_bytes)
        if not groups:
            with self._changed:
                task.left, task.ended_s = 0, self._clock.monotonic_s()
            return
        whole: Sequence[MigratingGroup] = groups
        if len(groups) > 1:
            begun_s = self._clock.monotonic_s()
            whole, keys, size_bytes = pull.fetch_groups(groups, together_bytes)
            task.group_bytes = size_bytes // max(1, len(whole))
            if not self._account(task, begun_s, keys, size_bytes):
                return
        elif not self._pull(task, groups[0]):
            return
        pull.arrived(whole)
        for group in whole:
            pull.clean(group)
            with self._changed:
                task.left = pull.unsettled_count()
                if task.left == 0:
                    task.ended_s = self._clock.monotonic_s()
            if task.on_complete is not None:
                task.on_complete(group.group)

    def _pull(self, task: _Task, group: MigratingGroup) -> bool:
        """Fetch a whole group; False: told to stop, or to forget the subtask."""
        position: bytes | None = b""
        group_bytes = 0
        while position is not None:
            begun_s = self._clock.monotonic_s()
            position, keys, size_bytes = task.backend.pull.fetch(group, position, self._chunk_bytes)
            group_bytes += size_bytes
            if not self._account(task, begun_s, keys, size_bytes):
                return False
        task.group_bytes = group_bytes
        return True

    def _account(self, task: _Task, begun_s: float, keys: int, size_bytes: int) -> bool:
        """Note what a call has fetched, and rest as the rate says; False: told to stop, or to forget the subtask."""
        task.keys += keys
        task.bytes += size_bytes
        pause_s = begun_s + size_bytes / self._bytes_per_second - self._clock.monotonic_s()
        with self._changed:
            if pause_s > 0:
                self._changed.wait_for(lambda: self._closed, pause_s)
            return not self._closed and self._tasks.get(task.backend) is task


def wanted_next(
    migrating: Sequence[MigratingGroup], together_bytes: int, group_bytes: int | None
) -> list[MigratingGroup]:
    """The groups to fetch by the next call, the one that is wanted most first; none: nothing is migrating.

    One at a time, but for groups of one peer that are small: a call to a busy peer takes 10 ms and more, whatever is in
    it, and until a group is here each of its reads is such a call.

    Args:
        migrating: all that are on their way.
        together_bytes: of all groups of a call; about half of that is asked for.
        group_bytes: of the latest group that was fetched; None: none was.
    """
    by_want = sorted(migrating, key=lambda group: -group.wanted)
    if not by_want or group_bytes is None or is_image(by_want[0].address):
        return by_want[:1]
    count = max(1, min(_GROUPS_MAX, together_bytes // 2 // max(1, group_bytes)))
    return [group for group in by_want if group.address == by_want[0].address][:count]


def ship_groups(
    local: StateBackend,
    client: RemoteStateClient,
    groups: Iterable[int],
    state_ids: Sequence[int],
    clock: Clock,
    *,
    on_group: Callable[[int, int], None] | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    batch_bytes: int = SHIP_BYTES,
    bytes_per_second: float = float("inf"),
) -> int:
    """Send groups to their new owner's store, each deleted here once it is there; returns the bytes sent.

    Called by the old owner, in a thread of its own, after it wrote its dirty keys: nobody may write these
    groups meanwhile. The client carries the old owner's epochs.

    Args:
        local: the store where they are.
        client: of the new owner's store.
        groups: in the order in which they are wanted.
        state_ids: the states of the stage.
        clock: of the rate.
        on_group: called with each group that is there completely, and its bytes.
        cancelled: asked between batches; True: return what was sent so far.
        batch_bytes: what is sent by one call.
        bytes_per_second: bound of the rate: rows of other groups are processed meanwhile.

    Raises:
        FencedError, ConnectionLostError, StateError: a store failed; the group in question is still here.
    """
    sent = 0
    next_s = clock.monotonic_s()

    def send(entries: Sequence[tuple[bytes, bytes]], size: int) -> None:
        nonlocal next_s
        _send(client, entries, size)
        next_s = max(clock.monotonic_s(), next_s + size / bytes_per_second)
        threads.sleep(max(0.0, next_s - clock.monotonic_s()))

    for group in groups:
        group_bytes = 0
        for state_id in state_ids:
            batch: list[tuple[bytes, bytes]] = []
            size_bytes = 0
            for key, value in local.scan(*state_bounds(group, state_id)):
                batch.append((key, value))
                size_bytes += len(key) + len(value)
                if size_bytes >= batch_bytes or len(batch) >= SHIP_KEYS_MAX:
                    if cancelled():
                        return sent
                    send(batch, size_bytes)
                    group_bytes += size_bytes
                    batch, size_bytes = [], 0
            if batch:
                send(batch, size_bytes)
                group_bytes += size_bytes
        for state_id in state_ids:
            local.delete_range(*state_bounds(group, state_id))
        sent += group_bytes
        if on_group is not None:
            on_group(group, group_bytes)
    return sent


def _send(client: RemoteStateClient, batch: Sequence[tuple[bytes, bytes]], size_bytes: int) -> None:
    if size_bytes >= _LOADED_BYTES_MIN:
        client.load(batch)
    else:
        client.write(batch)
