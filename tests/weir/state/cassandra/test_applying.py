"""When changes of complete checkpoints are written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from tests.weir.state.cassandra.last_write_wins import LastWriteWins
from weir.state.cassandra.applying import Applying
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

    def __init__(self, pause_s_max: float) -> None:
        self.clock = ManualClock()
        self.tables = SlowTables(self.clock)
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
    # It is applied, and a pause of 900 s begins.
    made.applying.finish(2, 180)
    yield made
    made.applying.close()


def test_a_key_that_changes_with_every_checkpoint_is_written_once_in_a_while(job: Job) -> None:
    for number in (3, 4, 5):
        job.checkpoint(number)
    # Three wait, but not for long.
    job.applying.hold_back(lambda: None)
    assert job.applying.waiting_checkpoints == 3
    job.clock.advance_ms(2_000 * PAUSE_S_MAX)
    job.applying.hold_back(lambda: None)
    assert job.applying.waiting_checkpoints == 0
    assert job.tables.rows == {KEY: (5, b"of 5")}
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
