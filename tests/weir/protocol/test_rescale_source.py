import pytest

from weir.errors import InvalidTransitionError
from weir.protocol.rescale.rescale_log import RescaleLog
from weir.protocol.rescale.rescale_model import JobStopped, RescaleEnded, RescalePhase
from weir.protocol.rescale.rescale_plan import RefusalKind, RescalePlan, RescaleRefusal

PLAN = RescalePlan(0, 1, (0,), (0, 1, 2), {}, ())


@pytest.fixture
def log():
    return RescaleLog()


@pytest.fixture
def rescale(log):
    rescale = log.add_of_source(PLAN, 1_000)
    rescale.start(1_001)
    return rescale


def test_it_is_complete_when_the_job_runs_again_with_the_new_subtasks(log, rescale):
    assert log.current is rescale
    rescale.checkpoint_made(1_100)
    rescale.job_runs(1_900)
    assert log.current is None
    report = log.report(rescale.rescale_id)
    assert (report["phase"], report["from"], report["to"], report["cause"]) == ("COMPLETE", 1, 3, "")
    assert report["phases"] == {
        "PLANNING": 1_000,
        "CHECKPOINTING": 1_001,
        "REDEPLOYING": 1_100,
        "COMPLETE": 1_900,
    }
    # Neither index nor version is given again.
    assert (log.next_index(0), log.last_version(0)) == (3, 1)


def test_without_a_checkpoint_the_source_goes_on_as_it_was(log, rescale):
    rescale.taken_back("no room", 1_100)
    assert (rescale.phase, rescale.cause, log.current) == (RescalePhase.ABORTED, "no room", None)


def test_the_end_of_the_stream_ends_it(rescale):
    assert rescale.handle(JobStopped("lost", finished=False), 1_100) == []
    [ended] = rescale.handle(JobStopped("", finished=True), 1_100)
    assert isinstance(ended, RescaleEnded)
    assert rescale.phase is RescalePhase.ABORTED
    assert "end of its stream" in rescale.cause


def test_a_job_that_fails_for_good_ends_it(rescale):
    rescale.checkpoint_made(1_100)
    rescale.job_ended("too many restarts", 1_200)
    assert (rescale.phase, rescale.cause) == (RescalePhase.FAILED, "too many restarts")
    with pytest.raises(InvalidTransitionError, match="FAILED -> COMPLETE"):
        rescale.job_runs(1_300)


def test_one_at_a_time(log, rescale):
    refusal = log.add_of_source(PLAN, 1_100)
    assert isinstance(refusal, RescaleRefusal)
    assert refusal.kind is RefusalKind.BUSY
    assert "in phase CHECKPOINTING" in refusal.message
