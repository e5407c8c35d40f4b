"""Rows that a step put aside are in its dead letters once, also when they come again after a restart."""

import json
from collections import Counter
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_a_row_that_was_met_again_comes_after_the_checkpoint_that_followed(deployment, tmp_path):
    put(*deployment(1, 0), b"a")
    put(*deployment(2, 0, passed_ids=[3]), b"a")
    put(*deployment(3, 3), b"a")
    assert letters(tmp_path) == ["a"]


def test_a_row_that_had_not_come_when_its_deployment_died_still_comes(deployment, tmp_path):
    put(*deployment(1, 0), b"a")
    deployment(2, 0)
    deployment(3, 4)
    put(*deployment(4, 5), b"a")
    assert letters(tmp_path) == ["a"]


def test_a_row_that_a_checkpoint_covered_does_not_come(deployment, tmp_path):
    put(*deployment(1, 0), b"a")
    put(*deployment(2, 0, passed_ids=[3]), b"a")
    deployment(3, 4)
    put(*deployment(4, 5), b"a")
    assert letters(tmp_path) == ["a", "a"]


def test_who_was_given_up_writes_no_letter_beside_a_newer_deployment(deployment, tmp_path):
    [given_up] = deployment(2, 4)
    put(given_up, b"a")
    [file] = deployment(3, 4)
    put(given_up, b"b")
    put(file, b"b", b"a")
    put(given_up, b"c")
    assert letters(tmp_path) == ["a", "b"]


@given(data=st.data())
def test_rows_are_there_once_whatever_dies_when(data, tmp_path_factory):
    """A step gets rows in any order; checkpoints, deaths and going back to an older checkpoint come anywhere.

    A deployment that was given up goes on for a while beside the next one.
    """
    path = tmp_path_factory.mktemp("letters")
    rows = data.draw(st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=8))
    #: What was done when a checkpoint was complete.
    done_at: dict[int, list[int]] = {0: []}
    checkpoint_id = restored_id = 0
    given_up: list[tuple[DeadLetterFile, list[int]]] = []
    for generation in range(1, data.draw(st.integers(2, 6)) + 1):
        passed = [restored_id]
        known = KnownRows(letters_stem(path, "job", "step"), generation, restored_id)
        with closing(
            DeadLetterFile(path, "job", "step", 0, known_rows=known, passed_id=lambda at=passed: at[0])
        ) as file:
            for older, not_done in given_up:
                put(older, *[rows[row] for row in not_done if data.draw(st.booleans())])
            done = list(done_at[restored_id])
            left = data.draw(st.permutations(sorted(set(range(len(rows))) - set(done))))
            stops = len(left) if generation == 6 else data.draw(st.integers(0, len(left)))
            for row in left[:stops]:
                if data.draw(st.booleans()):
                    checkpoint_id += 1
                    done_at[checkpoint_id], passed[0] = list(done), checkpoint_id
                put(file, rows[row])
                done.append(row)
            if data.draw(st.booleans()):
                checkpoint_id += 1
                done_at[checkpoint_id] = list(done)
            given_up = [(file, left[stops:])]
        restored_id = data.draw(st.sampled_from(sorted(done_at, reverse=True)[:3]))
        # Who goes back to an older one gives the later ones up.
        done_at = {number: done for number, done in done_at.items() if number <= restored_id}
    # Equal rows cannot be told apart: one that is done stands for another.
    written = Counter(letters(path))
    known = KnownRows(letters_stem(path, "job", "step"), 99, restored_id)
    with closing(DeadLetterFile(path, "job", "step", 0, known_rows=known)) as file:
        for row in set(range(len(rows))) - set(done_at[restored_id]):
            put(file, rows[row])
    assert Counter(letters(path)) >= written
    assert Counter(letters(path)) == Counter(row.decode() for row in rows)
