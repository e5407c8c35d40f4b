import pytest

from weir.errors import CheckpointError
from weir.protocol.checkpoints.renames import names_now


@pytest.mark.parametrize(
    ("renames", "known", "taken"),
    [
        ({"b": "a"}, "a", {"a": "b"}),
        # It stays in the job, and the checkpoint has the new name.
        ({"b": "a"}, "b", {}),
        # The job has another of the old name by now.
        ({"b": "a"}, "ab", {}),
        ({"b": "a", "c": "b"}, "ab", {"a": "b", "b": "c"}),
        ({"b": "a", "c": "b"}, "bc", {}),
        ({"a": "a", "b": "x"}, "a", {}),
        # Of a circle that the checkpoint has not got whole.
        ({"a": "b", "b": "a"}, "a", {"a": "b"}),
    ],
)
def test_a_name_is_taken_where_the_checkpoint_has_the_old_one_alone(renames, known, taken):
    assert names_now("steps", renames, set(known)) == taken


@pytest.mark.parametrize(
    ("renames", "message"),
    [
        ({"b": "a", "c": "a"}, "'b' and 'c' are both renamed_from 'a'"),
        ({"a": "d", "d": "a"}, "'a' and 'd' have changed names among themselves"),
        ({"a": "d", "e": "a", "d": "e"}, "have changed names among themselves"),
    ],
)
def test_names_that_cannot_be_told_apart_are_refused(renames, message):
    with pytest.raises(CheckpointError, match=message):
        names_now("steps", renames, {"a", "d", "e"})
