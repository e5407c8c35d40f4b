"""How often and how soon a failed job starts again."""

import pytest

from weir.errors import FailureKind
from weir.protocol.job.restart import GiveUp, PoisonWatch, RestartAfter, RestartPolicy


def test_waits_double_up_to_the_longest_and_then_it_is_given_up():
    policy = RestartPolicy(attempts=6, delay_ms=100, delay_ms_max=500, stable_ms=1000)
    decisions = [policy.decide(i, "disk is full") for i in range(6)]
    assert [decision.delay_ms for decision in decisions] == [0, 100, 200, 400, 500, 500]
    assert [decision.attempt for decision in decisions] == [1, 2, 3, 4, 5, 6]
    last = policy.decide(7, "disk is full")
    assert isinstance(last, GiveUp)
    assert last.reason.startswith("disk is full; given up after 6 restarts without 1000 ms")


def test_a_stable_period_starts_the_count_anew():
    policy = RestartPolicy(attempts=1, delay_ms=100, delay_ms_max=500, stable_ms=1000)
    assert policy.decide(0, "x") == RestartAfter(0, 1)
    policy.running(10)
    assert isinstance(policy.decide(1009, "x"), GiveUp)
    policy.running(2000)
    assert policy.decide(3000, "x") == RestartAfter(0, 1)
    assert policy.in_a_row == 1


def test_time_that_the_job_did_not_run_is_not_stable():
    policy = RestartPolicy(attempts=1, delay_ms=100, delay_ms_max=500, stable_ms=1000)
    policy.running(0)
    assert isinstance(policy.decide(5000, "x"), RestartAfter)
    assert isinstance(policy.decide(99_000, "it never ran again"), GiveUp)


def test_deaths_without_a_checkpoint_in_between_are_no_outage():
    """One damaged file ended nine task managers in a minute, and the job went on."""
    policy = RestartPolicy(attempts=3, delay_ms=100, delay_ms_max=500, stable_ms=1000)
    for _ in range(3):
        policy.died()
        assert isinstance(policy.decide(0, "a channel broke", FailureKind.OUTAGE), RestartAfter)
    policy.progressed()
    for _ in range(3):
        policy.died()
        assert isinstance(policy.decide(0, "a channel broke", FailureKind.OUTAGE), RestartAfter)
    policy.died()
    last = policy.decide(0, "a channel broke", FailureKind.OUTAGE)
    assert isinstance(last, GiveUp)
    assert last.reason.startswith(
        "a channel broke; given up after 4 deaths of task managers without a complete ch"
    )


def test_no_attempts_means_no_restart():
    policy = RestartPolicy(0, 100, 500, 1000)
    assert not policy.is_allowed
    assert policy.decide(0, "the cause as it is") == GiveUp("the cause as it is")


def test_very_many_attempts_have_a_bounded_delay():
    policy = RestartPolicy(10_000, 1, 10_000, 1000)
    assert max(policy.decide(0, "x").delay_ms for _ in range(10_000)) == 10_000


def test_negative_settings_are_refused():
    with pytest.raises(ValueError, match="negative"):
        RestartPolicy(1, -1, 0, 0)


def test_outages_are_not_counted_and_wait_longer_and_longer():
    policy = RestartPolicy(attempts=2, delay_ms=100, delay_ms_max=500, stable_ms=1000)
    waits = [policy.decide(now_ms, "disk full", FailureKind.OUTAGE).delay_ms for now_ms in range(6)]
    assert waits == [0, 100, 200, 400, 500, 500]
    assert policy.in_a_row == 0
    assert policy.decide(11, "a bug") == RestartAfter(0, 1)


@pytest.mark.parametrize(
    ("ran_ms", "checkpoint", "attempt"), [(999, True, 4), (1000, False, 4), (1000, True, 1)]
)
def test_a_stable_period_with_a_checkpoint_ends_a_row_of_outages(ran_ms, checkpoint, attempt):
    policy = RestartPolicy(attempts=2, delay_ms=100, delay_ms_max=500, stable_ms=1000)
    for now_ms in range(3):
        policy.decide(now_ms, "disk full", FailureKind.OUTAGE)
    # That of an earlier run does not count.
    policy.progressed()
    policy.running(10)
    if checkpoint:
        policy.progressed()
    decision = policy.decide(10 + ran_ms, "disk full", FailureKind.OUTAGE)
    assert decision == RestartAfter(400 if attempt > 1 else 0, attempt)


def test_what_would_fail_again_is_not_tried_again():
    policy = RestartPolicy(attempts=2, delay_ms=100, delay_ms_max=500, stable_ms=1000)
    assert policy.decide(0, "no such file", FailureKind.PERMANENT) == GiveUp("no such file")


def test_a_step_that_raises_at_rows_is_isolated_after_some_failures():
    watch = PoisonWatch(3)
    failures = ["picky", "picky", "other", "picky", "picky"]
    assert [watch.failed(FailureKind.ROWS, step) for step in failures] == [False, False, False, True, False]
    assert watch.isolated == {"picky"}


@pytest.mark.parametrize("kind", [kind for kind in FailureKind if kind is not FailureKind.ROWS])
def test_a_failure_that_is_not_about_rows_isolates_nothing(kind):
    watch = PoisonWatch(1)
    assert not watch.failed(kind, "sink")
    assert not watch.isolated


def test_isolation_can_be_switched_off():
    assert not PoisonWatch(0).failed(FailureKind.ROWS, "picky")


def test_rows_of_an_isolated_step_cost_no_attempt_as_long_as_checkpoints_are_complete_in_between():
    policy = RestartPolicy(attempts=1, delay_ms=100, delay_ms_max=500, stable_ms=1_000_000)
    assert policy.decide(0, "bad row", FailureKind.ROWS) == RestartAfter(0, 1)
    for now_ms in range(1, 20):
        policy.running(now_ms)
        policy.progressed()
        assert policy.decide(now_ms, "bad row", FailureKind.ROWS, is_isolated=True) == RestartAfter(0, 1)
    policy.running(20)
    assert isinstance(policy.decide(20, "bad row", FailureKind.ROWS, is_isolated=True), GiveUp)
    policy.progressed()
    assert isinstance(policy.decide(20, "x", FailureKind.OTHER, is_isolated=True), GiveUp)


def test_a_strict_job_is_not_restarted_for_a_row():
    policy = RestartPolicy(attempts=5, delay_ms=100, delay_ms_max=500, stable_ms=1000, strict=True)
    decision = policy.decide(0, "step 'a' raised", FailureKind.ROWS)
    assert isinstance(decision, GiveUp)
    assert "step 'a' raised; a strict job takes none" in decision.reason
    assert policy.decide(0, "other") == RestartAfter(0, 1)
