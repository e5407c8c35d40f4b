"""Brings the changes of complete checkpoints into the database, in a thread of its own; one for each job and process.

A change is applied with the timestamp of a checkpoint that is complete and covers it. So nothing is in the database
that a restart could take back, and whoever is late repeats history: his writes lose against newer ones.

Not every checkpoint is applied by itself. What is applied is the newest one that waits, which covers the others: so a
key that changes with every checkpoint is written once in a while. How often is decided by what it costs
(``weir.state.cassandra.pacing``).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from weir import threads
from weir.clock import Clock, SystemClock
from weir.errors import CheckpointError, FencedError, WeirError
from weir.state.cassandra.entries import decode
from weir.state.cassandra.pacing import Pace
from weir.state.cassandra.session import CheckCancelled
from weir.state.cassandra.store import DatabaseStore
from weir.state.cassandra.tables import DatabaseTables
from weir.state.placement.placed_store import PlacedStore

log = logging.getLogger(__name__)

#: Changes that are applied at a time: so few that the subtask, whose lock and interpreter they take, hardly waits.
_CHUNK_CHANGES = 2_500
#: Complete checkpoints that may wait, and maximal pauses that applying may take, before rows wait.
_WAITING_MAX, _PAUSES_MAX = 2, 2
_LOOK_S = 0.2


class _Closed(Exception):
    """The job ends."""


@dataclass(eq=False)
class _Taker:
    """A subtask's state, and the checkpoints in which it has a part."""

    store: DatabaseStore
    #: Numbers of checkpoints that are not over.
    taken: set[int] = field(default_factory=set)
    #: With the last part: the last checkpoint before it that has another one.
    passed_id: int | None = None

    def part_of(self, checkpoint_id: int) -> tuple[bool, int | None]:
        """Whether a complete checkpoint covers changes of this state, and up to which number (None: all)."""
        if self.passed_id is not None and checkpoint_id > self.passed_id:
            return True, None
        return checkpoint_id in self.taken, checkpoint_id


class Applying:
    """Any thread may call it.

    Args:
        tables: where rows are written.
        owner: id of the job.
        pause_s_max: how long applying may rest, in all, for one checkpoint; 0: every one is applied, at once.
        clock: of the pauses.
    """

    def __init__(
        self, tables: DatabaseTables, owner: str, pause_s_max: float = 0.0, clock: Clock | None = None
    ) -> None:
        self._tables = tables
        self._owner = owner
        self._pause_s_max = pause_s_max
        self._clock = clock or SystemClock()
        self._changed = threads.condition()
        self._takers: dict[PlacedStore, _Taker] = {}
        #: Complete checkpoints that are to be applied, with the stores of each.
        self._waiting: dict[int, list[tuple[DatabaseStore, int | None]]] = {}
        #: Monotonic, s: since when changes are being applied; None: they are not.
        self._applying_since_s: float | None = None
        #: Monotonic, s: the rest lasts until then.
        self._rest_until_s = 0.0
        self._pace = Pace(pause_s_max)
        #: Somebody waits for what is not applied: no rests.
        self._is_urgent = False
        #: Callers of :meth:`finish`.
        self._finishing = 0
        self._begun_id = 0
        self._closed = False
        self._failure: WeirError | None = None
        self._thread: threads.Running | None = None
        #: Changes written since the start.
        self.applied_changes = 0

    @property
    def waiting_checkpoints(self) -> int:
        """Complete checkpoints whose changes are not all in the database yet."""
        with self._changed:
            return len(self._waiting)

    def add(self, store: DatabaseStore) -> None:
        """Apply the changes of this subtask from now on."""
        with self._changed:
            self._takers[store.changes] = _Taker(store)

    def took(self, backend: PlacedStore, checkpoint_id: int, passed_id: int) -> None:
        """A subtask takes part in a checkpoint; 0: with its last part, which counts for those after ``passed_id``.

        Raises:
            WeirError: the database has refused changes for good: a job without rows would not notice.
        """
        self.check()
        with self._changed:
            taker = self._takers.get(backend)
            if taker is None:
                return
            if checkpoint_id == 0:
                taker.passed_id = passed_id
            else:
                taker.taken.add(checkpoint_id)

    def ended(self, checkpoint_id: int, *, committed: bool) -> None:
        """A checkpoint is over; if it is complete, what it covers is applied, soon."""
        with self._changed:
            mine = []
            for taker in self._takers.values():
                counts, up_to = taker.part_of(checkpoint_id)
                if committed and counts:
                    mine.append((taker.store, up_to))
                taker.taken = {number for number in taker.taken if number > checkpoint_id}
            if not mine or self._closed:
                return
            self._waiting[checkpoint_id] = mine
            if self._thread is None:
                self._thread = threads.start(self._run, "applying")
            self._changed.notify_all()

    def finish(self, checkpoint_id: int, timeout_s: float) -> None:
        """Return when everything up to a checkpoint is in the database; called at the end of the job.

        Raises:
            WeirError: it is not, or not in time.
        """
        with self._changed:
            self._hurry()
            self._finishing += 1
            done = self._changed.wait_for(
                lambda: self._failure is not None or all(number > checkpoint_id for number in self._waiting),
                timeout_s,
            )
            self._finishing -= 1
            # What comes later has time again; who else waits says so again.
            self._is_urgent = self._finishing > 0
            if self._failure is not None:
                raise self._failure
            if not done:
                session = self._tables.session
                because = f": {session.away_because}" if session.away_because else ""
                raise CheckpointError(
                    f"the changes of checkpoint {checkpoint_id} are not all in Cassandra at "
                    f"{session.settings.address} yet{because}"
                )

    def check(self) -> None:
        """Called before writes and at checkpoints: raise what the database has refused for good, so that the job fails.

        Raises:
            WeirError: see there.
        """
        if self._failure is not None:
            raise self._failure

    def hold_back(self, check_cancelled: CheckCancelled) -> None:
        """Wait while the database is too far behind: two complete checkpoints, and applying takes two maximal pauses.

        Then rows go on as fast as chunks are applied: what is waited for is one chunk. Without pauses rows wait for the
        checkpoint.

        Raises:
            WeirError: the database has refused changes for good.
        """
        if self._failure is None and not self._is_behind():
            return
        with self._changed:
            seen = self.applied_changes
            while self._is_behind() and self._failure is None and not self._closed:
                if self._pause_s_max and self.applied_changes > seen:
                    return
                self._hurry()
                self._changed.wait(_LOOK_S)
                check_cancelled()
            if self._failure is not None:
                raise self._failure

    def _is_behind(self) -> bool:
        if len(self._waiting) <= _WAITING_MAX:
            return False
        since_s = self._applying_since_s
        if since_s is None:
            return not self._pause_s_max
        return self._clock.monotonic_s() - since_s >= _PAUSES_MAX * self._pause_s_max

    def _hurry(self) -> None:
        if not self._is_urgent:
            self._is_urgent = True
            self._changed.notify_all()

    def close(self) -> None:
        """Stop soon; what is not applied is in the latest checkpoint. Safe to call twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None and not threads.is_current(self._thread):
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._await_work()
                if self._closed:
                    return
                self._applying_since_s = self._clock.monotonic_s()
                self._pace = Pace(self._pause_s_max)
                # A later checkpoint covers what an earlier one does, for those that take part in both.
                numbers = sorted(self._waiting)
                work = {number: list(self._waiting[number]) for number in numbers}
            try:
                done: set[DatabaseStore] = set()
                for number in reversed(numbers):
                    stores = [item for item in work[number] if item[0] not in done]
                    self.apply(number, stores)
                    done.update(store for store, _ in stores)
            except _Closed:
                return
            except WeirError as error:
                self._failed(error)
                return
            except Exception as error:
                log.exception("changes cannot be applied")
                self._failed(CheckpointError(f"changes cannot be applied: {type(error).__name__}: {error}"))
                return
            with self._changed:
                for number in numbers:
                    self._waiting.pop(number, None)
                for store, up_to in (item for items in work.values() for item in items):
                    if up_to is None:
                        # Its subtask has ended: nothing more comes.
                        self._takers.pop(store.changes, None)
                self._applying_since_s = None
                self._is_urgent = self._finishing > 0
                self._rest_until_s = self._clock.monotonic_s() + self._pace.last_rest_s()
                self._changed.notify_all()

    def _await_work(self) -> None:
        """Return when a checkpoint waits and the rest is over, or the job ends; the caller has the lock."""
        self._changed.wait_for(lambda: self._closed or bool(self._waiting))
        while not (self._closed or self._is_urgent):
            left_s = self._rest_until_s - self._clock.monotonic_s()
            if left_s <= 0:
                return
            self._changed.wait(left_s)

    def _applied_chunk(self, changes: int, took_s: float) -> None:
        """Tell who waits for it, and let others work."""
        with self._changed:
            self.applied_changes += changes
            self._changed.notify_all()
            rest_s = self._pace.worked(took_s)
            if not rest_s:
                return
            began_s = self._clock.monotonic_s()
            self._changed.wait_for(lambda: self._closed or self._is_urgent, rest_s)
            self._pace.rested(self._clock.monotonic_s() - began_s)

    def _failed(self, error: WeirError) -> None:
        with self._changed:
            if self._closed:
                return
            self._failure = error
            self._changed.notify_all()
        log.error("%s", error)

    def _check_closed(self) -> None:
        if self._closed:
            raise _Closed

    def apply(self, checkpoint_id: int, stores: Sequence[tuple[DatabaseStore, int | None]]) -> None:
        """Write what a complete checkpoint covers; of each store the changes up to a number (None: all).

        Raises:
            WeirError: the database refuses.
        """
        for store, up_to in stores:
            try:
                entries = store.unapplied(up_to)
            except FencedError:
                continue
            while True:
                began_s = self._clock.monotonic_s()
                chunk = list(islice(entries, _CHUNK_CHANGES))
                if not chunk:
                    break
                self._check_closed()
                if self._begun_id < checkpoint_id:
                    self._tables.begin(self._owner, checkpoint_id, self._check_closed)
                    self._begun_id = checkpoint_id
                changes = [(key, decode(change)) for key, change in chunk]
                self._tables.write(changes, checkpoint_id, self._check_closed)
                store.applied(chunk)
                self._applied_chunk(len(chunk), self._clock.monotonic_s() - began_s)
