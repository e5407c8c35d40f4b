"""How often a range waits for a store that is elsewhere: key groups are read together, not one after another."""

import numpy as np
import pytest

import weir
from tests.task_manager.queries.test_window_questions import KEYS, WINDOWS, Job, Stored, expected_of, rounded
from tests.weir.operators.queries.asked_states import InRounds
from weir.operators.queries import answering, pane_heads


class StoredInRounds(InRounds, Stored):
    """Places of groups are kept, as of a checkpoint."""

    def __init__(self, *given):
        super().__init__(*given)
        self._places = {}

    def know_place(self, group, state_id, data):
        self._places[group] = data

    def _stored_place(self, group, state_id):
        return self._places[group] if group in self._places else super()._stored_place(group, state_id)


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("small", [True, False])
def test_windows_of_all_groups_are_read_together(kind, small, monkeypatch):
    monkeypatch.setattr("weir.state.tables.panes.window_table.PACKED_ENTRIES_MIN", 1)
    monkeypatch.setattr(pane_heads, "_HEAD_ENTRIES", 1_000 if small else 1)
    random = np.random.default_rng(5)
    aggregates = {"n": weir.count(), "kinds": weir.count_distinct("v")}
    job = Job(WINDOWS[kind], aggregates)
    job.take_random(random, 200, 1_000)
    job.watermark(1_000)
    job.tables.flush()
    rounds, told = {}, {}
    for state in aggregates:
        reading = StoredInRounds(job.backend, job.numbers)
        told[state] = {row["key"]: row["value"] for row in job.page(reading, state).rows}
        rounds[state] = reading.rounds
        if small and state == "n":
            assert len(reading.bounds) == 2
        reading = StoredInRounds(job.backend, job.numbers)
        assert job.page(reading, state, counts=True).count == len(told[state])
    results = job.results_at_the_end()
    for state in aggregates:
        assert rounded(told[state]) == rounded(expected_of(results, state))
    assert set(told["n"]) <= set(KEYS)
    if small:
        assert rounds["n"] == 1
        assert rounds["kinds"] <= 2
    elif kind != "sliding":
        # Its first and last pane, then pane by pane; what is packed is looked for as before.
        panes = len({window["start"] for listed in told["n"].values() for window in listed})
        assert rounds["n"] <= panes * 4 + 8


@pytest.mark.parametrize("kind", WINDOWS)
def test_a_group_of_many_small_panes_is_read_at_once(kind, monkeypatch):
    monkeypatch.setattr(pane_heads, "_HEAD_ENTRIES", 8)
    monkeypatch.setattr(answering, "_RUNS_MAX", 8)
    job = Job(WINDOWS[kind], {"n": weir.count()})
    for start_ms in range(1_000, 1_400, 40):
        job.take_random(np.random.default_rng(start_ms), 20, start_ms)
    job.tables.flush()
    reading = StoredInRounds(job.backend, job.numbers)
    told = {row["key"]: row["value"] for row in job.page(reading, "n").rows}
    assert told == expected_of(job.results_at_the_end(), "n")
    assert reading.rounds <= 3
