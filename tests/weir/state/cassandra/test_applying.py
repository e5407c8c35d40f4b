"""When changes of complete checkpoints are written."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from tests.weir.state.cassandra.last_write_wins import LastWriteWins
from weir.state.cassandra import applying
from weir.state.cassandra.applying import Applying
from weir.state.cassandra.pacing import Pace
from weir.state.cassandra.store import DatabaseStore
from weir.state.layout import encode_key
from weir.state.placement.placed_store import PlacedStore
from weir.state.stores.memory import MemoryBackend
from weir.testing.manual_clock import ManualClock

STATE = 3
KEY = encode_key(0, STATE, b"hot")
PAUSE_S_MAX = 1_000.0


class SlowTables(LastWriteWins):
    """Each write takes 100 s."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock
        self.writes = 0

    def write(
        self, changes: Sequence[tuple[bytes, bytes | None]], checkpoint_id: int, check_cancelled: object
    ) -> None:
        super().write(changes, checkpoint_id, check_cancelled)
        self.writes += 1
        self._clock.advance_ms(100_000)


class Job:
    """One subtask, whose only key changes before every checkpoint."""

    def __init__(self, pause_s_max: float, tables: LastWriteWins | None = None) -> None:
        self.clock = ManualClock()
        self.tables = tables or SlowTables(self.clock)
        self._passed_id = 0
        changes = PlacedStore(MemoryBackend(), "here", [STATE], lambda address, epochs: pytest.fail(address))
        changes.ownership.adopt({0: 1})
        self.store = DatabaseStore(changes, self.tables, passed_id=lambda: self._passed_id)  # type: ignore[arg-type]
        self.applying = Applying(self.tables, "job", pause_s_max, self.clock)  # type: ignore[arg-type]
        self.applying.add(self.store)

    def checkpoint(self, number: int) -> None:
        self.store.write([(KEY, b"of %d" % number)])
        self._passed_id = number
        self.applying.took(self.store.changes, number, 0)
        self.applying.ended(number, committed=True)


@pytest.fixture
def job() -> Iterator[Job]:
    made = Job(PAUSE_S_MAX)
    made.checkpoint(2)
    # It is applied, and a rest of 1,000 s begins.
    made.applying.finish(2, 180)
    yield made
    made.applying.close()


def test_a_key_that_changes_with_every_checkpoint_is_written_once_in_a_while(job: Job) -> None:
    for number in (3, 4, 5):
        job.checkpoint(number)
    # Three wait, and nobody waits for them: it is a rest.
    job.applying.hold_back(lambda: None)
    assert job.applying.waiting_checkpoints == 3
    job.clock.advance_ms(1_000 * PAUSE_S_MAX)
    job.checkpoint(6)
    job.applying.finish(6, 180)
    assert job.tables.rows == {KEY: (6, b"of 6")}
    assert isinstance(job.tables, SlowTables)
    assert job.tables.writes == 2
    assert list(job.store.changes.scan()) == []


def test_the_end_of_the_job_waits_for_no_pause(job: Job) -> None:
    job.checkpoint(3)
    job.applying.finish(3, 180)
    assert job.tables.rows == {KEY: (3, b"of 3")}


def test_without_pauses_every_checkpoint_is_applied_and_rows_wait_for_the_third() -> None:
    job = Job(0.0)
    try:
        for number in (2, 3, 4, 5):
            job.checkpoint(number)
        job.applying.hold_back(lambda: None)
        assert job.applying.waiting_checkpoints <= 2
        job.applying.finish(5, 180)
        assert job.tables.rows == {KEY: (5, b"of 5")}
    finally:
        job.applying.close()


class StuckTables(LastWriteWins):
    """Each write waits until it is let through."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)

    def write(
        self, changes: Sequence[tuple[bytes, bytes | None]], checkpoint_id: int, check_cancelled: object
    ) -> None:
        self.begun.release()
        assert self.may_end.acquire(timeout=180)
        super().write(changes, checkpoint_id, check_cancelled)


def test_rows_go_on_as_fast_as_chunks_are_written_while_the_database_is_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(applying, "_CHUNK_CHANGES", 1)
    tables = StuckTables()
    job = Job(PAUSE_S_MAX, tables)
    job.store.write([(KEY + b"er", b"of 1")])
    for number in (2, 3, 4):
        job.checkpoint(number)
    assert tables.begun.acquire(timeout=180)
    # It has not taken long yet.
    job.applying.hold_back(lambda: None)
    job.clock.advance_ms(2_000 * PAUSE_S_MAX)
    has_waited = threading.Event()
    reader = threading.Thread(target=job.applying.hold_back, args=(has_waited.set,))
    reader.start()
    try:
        assert has_waited.wait(180)
        tables.may_end.release()
        reader.join(180)
        assert not reader.is_alive()
        assert job.applying.applied_changes == 1
    finally:
        for _ in range(10):
            tables.may_end.release()
        job.applying.close()
        reader.join()


def test_writing_takes_a_twentieth_of_the_time() -> None:
    pace = Pace(60.0)
    rests_s = []
    for _ in range(20):
        rests_s.append(pace.worked(0.1))
        pace.rested(rests_s[-1])
    assert rests_s == [pytest.approx(1.9)] * 20
    assert pace.last_rest_s() == pytest.approx(0)


def test_a_rest_that_was_cut_short_is_taken_in_the_end() -> None:
    pace = Pace(60.0)
    pace.worked(0.1)
    pace.rested(0.4)
    assert pace.last_rest_s() == pytest.approx(1.5)


def test_rests_have_a_bound_for_all_chunks_together_and_are_short_after_it() -> None:
    pace = Pace(60.0)
    assert pace.worked(3) == pytest.approx(57)
    pace.rested(57)
    assert pace.worked(1) == pytest.approx(3)
    pace.rested(3)
    assert pace.worked(1) == pytest.approx(2)
    pace.rested(2)
    assert pace.last_rest_s() == 0


def test_without_a_bound_for_rests_there_are_none() -> None:
    pace = Pace(0.0)
    assert pace.worked(1) == pace.last_rest_s() == 0
