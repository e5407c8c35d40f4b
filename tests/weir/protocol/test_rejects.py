"""Whether a job may go on with what was rejected."""

import pytest

from weir.protocol.job.rejects import FirstReject, RejectLedger, Rejects
from weir.types import SubtaskId

FIRST, SECOND = SubtaskId(1, 0), SubtaskId(1, 1)
WHY = FirstReject("ValueError: too hot", "", -1, "dead_letters/job/picky.0.jsonl")


def ledger(share_max=0.01, grace=100, strict=False):
    return RejectLedger(share_max, grace, strict=strict)


def step(rejected, rows_in, first=WHY):
    return Rejects("picky", False, rows_in, rejected, first if rejected else None)


def source(rejected, met=1_000_000, here=None):
    first = FirstReject("field n is null", "in.parquet", 7, "dead_letters/job/events.0.jsonl")
    here = rejected if here is None else here
    return Rejects("events", True, met, rejected, first if rejected else None, rejected_here=here)


@pytest.mark.parametrize(
    ("rejected", "rows_in", "fails"),
    [(101, 10_000, True), (100, 100, False), (101, 10_100, False), (0, 10_000, False), (101, 101, True)],
)
def test_a_share_above_the_limit_fails_once_it_is_more_than_the_grace(rejected, rows_in, fails):
    job = ledger()
    job.take(FIRST, [step(rejected, rows_in)])
    assert bool(job.verdict()) is fails


def test_the_message_names_everything_that_helps():
    job = ledger()
    job.take(FIRST, [step(150, 1_000)])
    message = job.verdict()
    for text in (
        "step 'picky' had 150 of 1,000 rows put aside",
        "15.0%",
        "1.0%",
        "100 rows (dead_letter_grace)",
        "controlPlane.dead_letter_share_max",
        "dead_letters/job/picky.0.jsonl",
        "ValueError: too hot",
    ):
        assert text in message
    assert "\n" not in message


def test_subtasks_are_judged_together():
    job = ledger()
    job.take(FIRST, [step(80, 4_000)])
    assert not job.verdict()
    job.take(SECOND, [step(80, 4_000)])
    assert "160 of 8,000" in job.verdict()
    job.take(SECOND, [step(0, 4_000)])
    assert not job.verdict(), "a report replaces the earlier one"


def test_what_a_restart_takes_back_does_not_count():
    job = ledger()
    job.take(FIRST, [step(90, 90)])
    job.begin_generation(keeps=False)
    job.take(FIRST, [step(90, 90)])
    assert not job.verdict()
    assert job.totals[0].rejected == 90


def test_what_a_checkpoint_covers_counts_over_restarts():
    """Else a step could put aside 5% for ever, a few rows in each deployment."""
    job = ledger()
    for _ in range(4):
        job.take(FIRST, [step(25, 500)])
        job.begin_generation(keeps=True)
    assert not job.verdict()
    job.take(FIRST, [step(25, 500)])
    assert "125 of 2,500" in job.verdict()


def test_few_rows_are_judged_at_the_end():
    job = ledger()
    job.take(FIRST, [step(50, 50)])
    assert not job.verdict()
    assert "50 of 50" in job.verdict(at_end=True)
    job.take(FIRST, [step(2, 50)])
    assert not job.verdict(at_end=True)
    allows_all = ledger(share_max=1)
    allows_all.take(FIRST, [step(500, 500)])
    assert not allows_all.verdict(at_end=True)


def test_records_that_a_source_rejects_fail_only_a_strict_job():
    job = ledger()
    job.take(FIRST, [source(10_000)])
    assert not job.verdict(at_end=True)
    strict = ledger(strict=True)
    strict.take(FIRST, [source(0)])
    assert not strict.verdict(at_end=True)
    strict.take(FIRST, [source(34)])
    message = strict.verdict()
    assert "source 'events' rejected 34 records; the first: in.parquet at 7: field n is null" in message
    assert "dead_letters/job/events.0.jsonl" in message
    assert "--strict" in message


def test_strict_takes_no_row_put_aside():
    job = ledger(strict=True)
    job.take(FIRST, [step(1, 10_000)])
    assert "--strict" in job.verdict()


def test_a_source_counts_on_by_itself_and_its_first_reject_stays_known():
    job = ledger()
    job.take(FIRST, [source(3)])
    job.begin_generation(keeps=True)
    assert job.totals == []
    job.take(FIRST, [Rejects("events", True, 0, 3)])
    assert [(item.rejected, item.first.position) for item in job.totals] == [(3, 7)]


def test_a_retired_subtask_still_counts_when_its_index_is_used_again():
    job = ledger()
    job.take(FIRST, [step(60, 100)])
    job.retired(FIRST)
    job.take(FIRST, [step(50, 100)])
    assert job.totals[0].rejected == 110


def test_settings_are_checked():
    with pytest.raises(ValueError, match="share_max"):
        ledger(share_max=1.5)


@pytest.mark.parametrize(
    ("rejected", "met", "at_end", "fails"),
    [
        (100, 100, True, True),
        (1, 1, True, True),
        (100, 100, False, False),
        (101, 101, False, True),
        (40, 100, True, False),
        (51, 100, True, True),
        (150, 1_000, False, True),
        (101, 10_100, True, False),
    ],
)
def test_a_source_that_rejects_too_large_a_share_fails_the_job(rejected, met, at_end, fails):
    job = ledger()
    job.take(FIRST, [source(rejected, met)])
    message = job.verdict(at_end=at_end)
    assert bool(message) is fails
    if fails:
        assert "field n is null" in message
        assert "mend the schema or the input" in message


def test_a_source_of_which_no_record_is_good_fails_the_job_always():
    job = ledger(share_max=1)
    job.take(FIRST, [source(100, 100)])
    assert "none was good" in job.verdict(at_end=True)
    job.take(SECOND, [source(0, 1)])
    assert not job.verdict(at_end=True)


def test_what_a_source_rejected_before_a_restart_is_told_but_its_share_is_of_now():
    job = ledger()
    job.begin_generation(keeps=True)
    job.take(FIRST, [source(5_000, met=1_000, here=2)])
    assert not job.verdict(at_end=True)
    assert job.totals[0].rejected == 5_000
