import pytest

from weir.errors import CheckpointError
from weir.protocol.database_run import DatabaseRun, databases_of, parse_run


def test_timestamps_grow_with_checkpoints_and_over_savepoints() -> None:
    first = DatabaseRun("job-1")
    assert first.timestamp(41) < first.timestamp(42)
    second = first.after(42)
    assert second.name == first.name
    # The savepoint is checkpoint 1 of the next job.
    assert second.timestamp(1) == first.timestamp(42)
    assert second.timestamp(2) > first.timestamp(42)


def test_a_run_has_a_form() -> None:
    assert str(DatabaseRun("word_count-1", 7)) == "word_count-1@7"
    assert parse_run("a@b@7") == DatabaseRun("a@b", 7)


@pytest.mark.parametrize("text", ["", "job", "@1", "job@x"])
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(CheckpointError, match="names no run"):
        parse_run(text)


def test_images_of_one_checkpoint_belong_to_one_run() -> None:
    assert databases_of(["a@0", "", "a@0"]) == ["a@0"]
    with pytest.raises(CheckpointError, match="several runs"):
        databases_of(["a@0", "b@0"])
