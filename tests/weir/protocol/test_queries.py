"""Parameters become questions, or refusals that name what is wrong."""

import pytest

from weir.protocol.job.job_machine import JobState
from weir.protocol.queries import (
    QueryError,
    Question,
    check_job,
    continuation,
    parse_question,
    question_from_json,
)


@pytest.mark.parametrize(
    ("key", "given", "expected"),
    [
        ("belgium", {}, Question("count", "words", "belgium")),
        ("b", {"consistency": "checkpoint"}, Question("count", "words", "b", "checkpoint")),
        ("b", {"as_of": "-5"}, Question("count", "words", "b", as_of_ms=-5)),
        ("b", {"from": "1", "to": "2"}, Question("count", "words", "b", first="1", last="2")),
        ("b", {"limit": "7"}, Question("count", "words", "b", limit=7, cuts=True)),
        (None, {}, Question("count", "words", consistency="checkpoint")),
        (
            None,
            {"prefix": "be", "reverse": "true", "limit": "7"},
            Question("count", "words", None, "checkpoint", prefix="be", reverse=True, limit=7),
        ),
        (None, {"consistency": "latest"}, Question("count", "words")),
        (None, {"continuation": continuation(None, "6162")}, Question("count", "words", after="6162")),
        (None, {"count": "1"}, Question("count", "words", None, "checkpoint", counts=True)),
        (
            None,
            {"continuation": continuation(12, "6162")},
            Question("count", "words", None, "checkpoint", after="6162", checkpoint_id=12),
        ),
    ],
)
def test_parameters(key, given, expected):
    question = parse_question("count", "words", key, given)
    assert question == expected
    assert question_from_json(question.to_json()) == question


@pytest.mark.parametrize(
    ("key", "given", "says"),
    [
        ("b", {"fro": "a"}, "'fro' is no parameter; there are as_of, consistency"),
        ("b", {"consistency": "newest"}, "must be latest or checkpoint"),
        (None, {"consistency": "latest", "continuation": continuation(12, "61")}, "is of a checkpoint"),
        (
            None,
            {"consistency": "checkpoint", "continuation": continuation(None, "61")},
            "is of consistency=latest",
        ),
        (None, {"continuation": continuation(None, "")}, "is not one that an answer had"),
        (None, {"min_checkpoint": "last"}, "must be a whole number"),
        (None, {"min_checkpoint": "13", "continuation": continuation(12, "61")}, "is of checkpoint 12"),
        (None, {"limit": "0"}, "from 1 to 10000"),
        (None, {"limit": "many"}, "'many'"),
        ("b", {"limit": "1001"}, "of latest it is at most 1000"),
        (None, {"prefix": "a", "to": "b"}, "exclude each other"),
        ("b", {"as_of": "1", "from": "2"}, "one moment"),
        (None, {"as_of": "1", "time_to": "2"}, "one moment"),
        (None, {"time_from": "yesterday"}, "must be a whole number"),
        ("b", {"count": "true"}, "leave the key out"),
        (None, {"reverse": "maybe"}, "true or false"),
        (None, {"continuation": "what"}, "is not one that an answer had"),
        (None, {"continuation": "é"}, "is not one that an answer had"),
        (None, {"continuation": continuation(2**70, "61")}, "is not one that an answer had"),
        (None, {"continuation": continuation(-5, "61")}, "is not one that an answer had"),
        (None, {"continuation": continuation(True, "61")}, "is not one that an answer had"),
        ("b" * 9_000, {}, "more than 8,192 characters"),
    ],
)
def test_refusals(key, given, says):
    with pytest.raises(QueryError, match=says) as refused:
        parse_question("count", "words", key, given)
    assert refused.value.status == 400


@pytest.mark.parametrize("value", [None, [], {"step": "a"}, {"step": "a", "state": "b", "more": 1}])
def test_what_is_no_question_is_refused(value):
    with pytest.raises(QueryError):
        question_from_json(value)


@pytest.mark.parametrize("state", list(JobState))
def test_questions_are_answered_while_the_job_runs(state):
    if state in (JobState.RUNNING, JobState.FINISHING):
        check_job(state)
        return
    with pytest.raises(QueryError, match=state.value) as refused:
        check_job(state)
    starting = (JobState.WAITING_FOR_TASK_MANAGERS, JobState.DEPLOYING, JobState.RESTARTING)
    assert refused.value.status == (503 if state in starting else 409)
