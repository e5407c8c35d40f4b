"""Rows that a step put aside are in its dead letters once, also when they come again after a restart."""

import json

import pytest

from weir.operators.dead_letters import DeadLetterFile, letters_stem
from weir.operators.known_rows import KnownRows


@pytest.fixture
def deployment(tmp_path):
    """Makes the dead-letter files of one deployment's subtasks; all are closed at the end."""
    files = []

    def begin(generation, restored_id, passed_ids=(0,)):
        known = KnownRows(letters_stem(tmp_path, "job", "step"), generation, restored_id)
        made = [
            DeadLetterFile(tmp_path, "job", "step", index, known_rows=known, passed_id=lambda at=passed: at)
            for index, passed in enumerate(passed_ids)
        ]
        files.extend(made)
        return made

    yield begin
    for file in files:
        file.close()


def put(file, *rows):
    for row in rows:
        file.reject("step step", -1, "raised", row)


def letters(tmp_path):
    lines = [line for path in sorted(tmp_path.rglob("*.jsonl")) for line in path.read_text().splitlines()]
    return sorted(json.loads(line)["raw"] for line in lines)


def test_rows_that_come_again_are_not_written_again(deployment, tmp_path):
    put(*deployment(1, 0), b"a", b"b", b"b")
    [file] = deployment(2, 0)
    put(file, b"b", b"a", b"b", b"c")
    assert letters(tmp_path) == ["a", "b", "b", "c"]
    assert file.rejected == 4, "they count in each deployment"


def test_equal_rows_after_the_checkpoint_are_rows_of_their_own(deployment, tmp_path):
    put(*deployment(1, 0), b"a")
    put(*deployment(2, 5), b"a")
    assert letters(tmp_path) == ["a", "a"]


def test_what_was_written_after_a_barrier_comes_again(deployment, tmp_path):
    put(*deployment(1, 0, passed_ids=[7]), b"a")
    put(*deployment(2, 7), b"a")
    assert letters(tmp_path) == ["a"]


def test_a_row_may_come_again_to_another_subtask(deployment, tmp_path):
    first, _ = deployment(1, 0, passed_ids=[0, 0])
    put(first, b"a")
    first, second = deployment(2, 0, passed_ids=[0, 0])
    put(second, b"a")
    put(first, b"a")
    assert letters(tmp_path) == ["a", "a"], "one was there, and a second equal row has come"


def test_a_letter_that_was_cut_short_is_written_again(deployment, tmp_path):
    put(*deployment(1, 0), b"a")
    [path] = tmp_path.rglob("*.jsonl")
    path.write_bytes(path.read_bytes()[:-10])
    put(*deployment(2, 0), b"a")
    assert path.read_text().splitlines()[1:] != []
