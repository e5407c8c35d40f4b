"""One line over made-up statuses: whether a job keeps up, and if not, which stage limits it and why."""

import pytest

from weir.protocol.job.headline import Verdict, headline
from weir.protocol.job.load import HotPart, JobLoad, StageLoad, SubtaskLoad


def subtasks(*loads, **more):
    return [
        SubtaskLoad(index, busy=busy, blocked=blocked, **more) for index, (busy, blocked) in enumerate(loads)
    ]


def chain(*stages):
    """Stages one after the other, each given by its name and subtasks."""
    return [
        StageLoad(index, name, loads, producers=[index - 1] if index else [])
        for index, (name, loads) in enumerate(stages)
    ]


def job(*stages, **more):
    return JobLoad("RUNNING", chain(*stages), **{"rows_per_s": 48_000.0, "latency_p99_ms": 14.2, **more})


CALM = subtasks((0.1, 0.0), (0.2, 0.05))
HELD_BACK = subtasks((0.1, 0.9), (0.1, 0.6))


def test_a_job_that_keeps_up_tells_its_rate_and_latency():
    said = headline(job(("events", CALM), ("join", CALM)))
    assert (said.verdict, said.stage) == (Verdict.KEEPS_UP, None)
    assert said.text == "keeps up: 48,000 rows/s, p99 14 ms"


def test_a_job_without_rows_keeps_up():
    said = headline(job(("events", CALM), rows_per_s=0.0, latency_p99_ms=None))
    assert said.text == "keeps up: no rows come for now"


def test_the_stage_after_the_blocked_edge_limits_and_not_one_before_it():
    busy = subtasks((0.97, 0.0), (0.96, 0.0), (0.3, 0.0), (0.2, 0.0))
    said = headline(
        job(("events", HELD_BACK), ("parse", HELD_BACK), ("keep", HELD_BACK), ("join", busy), ("out", CALM))
    )
    assert (said.verdict, said.stage) == (Verdict.LIMITED, 3)
    assert said.text == "stage 3 `join` limits: 2 of 4 subtasks 97 % busy"


def test_a_stage_that_is_held_back_is_not_named_though_it_is_busier():
    said = headline(
        job(("events", HELD_BACK), ("parse", subtasks((0.75, 0.25))), ("join", subtasks((0.6, 0.0))))
    )
    assert (said.stage, said.text) == (2, "stage 2 `join` limits: 1 of 1 subtask 60 % busy")


def test_a_hot_key_group_is_named_with_its_share_of_the_rows_of_the_stage():
    loads = [
        SubtaskLoad(0, busy=0.97, rows_in_per_s=700.0, hot_group=17, hot_group_share=0.6),
        SubtaskLoad(1, busy=0.2, rows_in_per_s=300.0, hot_group=5, hot_group_share=0.9),
    ]
    said = headline(job(("events", HELD_BACK), ("count", loads)))
    assert said.text == "stage 1 `count` limits: 1 of 2 subtasks 97 % busy, key group 17 has 42 % of the rows"


def test_hot_keys_of_a_stage_are_those_of_its_subtasks_by_their_rows():
    loads = [
        SubtaskLoad(0, rows_in_per_s=300.0, hot_keys=(HotPart(1, 0.5, "ann"), HotPart(1, 0.1, "bob"))),
        SubtaskLoad(1, rows_in_per_s=700.0, hot_keys=(HotPart(9, 0.4, "cyd"), HotPart(1, 0.1, "ann"))),
    ]
    found = StageLoad(1, "count", loads).hot_keys
    assert [(part.key, part.group, round(part.share, 3)) for part in found] == [
        ("cyd", 9, 0.28),
        ("ann", 1, 0.22),
        ("bob", 1, 0.03),
    ]
    assert StageLoad(1, "count", []).hot_keys == StageLoad(1, "count", []).hot_groups == []


def test_one_subtask_has_all_groups_so_none_of_them_is_told():
    loads = [SubtaskLoad(0, busy=1.0, rows_in_per_s=700.0, hot_group=17, hot_group_share=0.6)]
    assert headline(job(("events", HELD_BACK), ("count", loads))).text.endswith("1 of 1 subtask 100 % busy")


def test_a_sink_that_waits_is_named_though_it_is_not_busy():
    loads = [SubtaskLoad(0, busy=0.05, queued_age_ms=1_234.0)]
    said = headline(job(("events", HELD_BACK), ("out", loads)))
    assert said.text == "stage 1 `out` limits: rows wait before it for 1.2 s, and it is 5 % busy"


def test_a_source_that_reads_as_fast_as_it_can_limits():
    loads = [SubtaskLoad(0, busy=1.0, rows_in_per_s=2_400_000.0)]
    said = headline(job(("events", loads), ("out", CALM)))
    assert (said.stage, said.text) == (
        0,
        "source `events` limits: it reads 2,400,000 rows/s and is 100 % busy",
    )


def test_of_two_stages_that_hold_others_back_the_busier_one_is_named():
    stages = [
        StageLoad(0, "left", HELD_BACK),
        StageLoad(1, "right", HELD_BACK),
        StageLoad(2, "slow", subtasks((0.7, 0.0)), producers=[0]),
        StageLoad(3, "slower", subtasks((0.99, 0.0)), producers=[1]),
    ]
    assert headline(JobLoad("RUNNING", stages)).stage == 3


def test_subtasks_that_have_ended_do_not_count():
    loads = [SubtaskLoad(0, busy=1.0, has_ended=True), SubtaskLoad(1, busy=0.1)]
    assert headline(job(("events", CALM), ("count", loads))).verdict is Verdict.KEEPS_UP


def test_a_source_that_comes_late_is_named():
    stages = [
        StageLoad(0, "views", [SubtaskLoad(0, watermark_lag_ms=100)]),
        StageLoad(1, "clicks", [SubtaskLoad(0, watermark_lag_ms=40_100)]),
        StageLoad(2, "join", CALM, producers=[0, 1]),
    ]
    said = headline(JobLoad("RUNNING", stages, rows_per_s=5.0))
    assert (said.verdict, said.stage) == (Verdict.KEEPS_UP, 1)
    assert (
        said.text == "keeps up: 5.0 rows/s; source `clicks` holds event time back: 40.0 s behind the others"
    )


def test_what_rows_wait_for_outside_comes_before_any_stage():
    said = headline(
        job(("events", HELD_BACK), ("out", CALM), waits_for="Cassandra at a:9042 does not answer")
    )
    assert said.verdict is Verdict.HELD_UP
    assert said.text == "rows wait for something outside: Cassandra at a:9042 does not answer"


@pytest.mark.parametrize(
    ("state", "cause", "verdict", "text"),
    [
        ("FAILED", "step 'count': boom", Verdict.FAILED, "failed: step 'count': boom"),
        ("FAILING", "", Verdict.FAILED, "failed"),
        ("FINISHED", "", Verdict.ENDED, "finished: 12,000 rows read"),
        ("CANCELLED", "by a user", Verdict.ENDED, "cancelled: 12,000 rows read"),
        ("RESTARTING", "a task manager is gone", Verdict.NOT_RUNNING, "restarting: a task manager is gone"),
        ("DEPLOYING", "", Verdict.NOT_RUNNING, "deploying"),
        ("WAITING_FOR_TASK_MANAGERS", "waiting: 5 slots", Verdict.NOT_RUNNING, "waiting: 5 slots"),
    ],
)
def test_a_job_that_does_not_run_says_why(state, cause, verdict, text):
    said = headline(JobLoad(state, (), cause=cause, rows_in=12_000))
    assert (said.verdict, said.text) == (verdict, text)


def test_nothing_is_claimed_before_it_was_measured():
    said = headline(job(("events", HELD_BACK), ("out", CALM), is_measured=False))
    assert (said.verdict, said.text) == (Verdict.NOT_RUNNING, "running: measuring for a moment")


def test_a_source_that_falls_behind_limits_though_nothing_is_busy():
    loads = [SubtaskLoad(0, rows_in_per_s=1_000.0, behind=12_000, behind_more_per_s=300.0)]
    said = headline(job(("topic", loads), ("out", CALM)))
    assert said.verdict is Verdict.LIMITED
    assert said.text == "source `topic` limits: 12,000 records wait to be read, 300 more each second"


def test_a_job_that_catches_up_says_how_much_is_left():
    loads = [SubtaskLoad(0, rows_in_per_s=48_000.0, behind=1_200_000, behind_more_per_s=-30_000.0)]
    said = headline(job(("topic", loads), ("out", CALM)))
    assert said.text == "keeps up: 48,000 rows/s, p99 14 ms, 1,200,000 records wait to be read"
