"""Subtasks of a source look at their input one after the other; it may change in between, and no row is lost."""

import pytest

import weir
from tests.weir.operators.test_following import KINDS
from weir.errors import InputError
from weir.operators.sources.files import file_reader


def run(source, parallelism):
    flow = weir.Dataflow("job")
    flow.source("events", source, parallelism=parallelism).sink("out", weir.Collect())
    return sorted(row["id"] for row in weir.run(flow)["out"])


@pytest.fixture
def looks(monkeypatch):
    """What happens before a subtask looks for files, by its number."""
    found, before = file_reader.list_input_files, dict()
    count = iter(range(1_000))

    def listed(path):
        before.pop(next(count), lambda: None)()
        return found(path)

    monkeypatch.setattr(file_reader, "list_input_files", listed)
    return before


@pytest.mark.parametrize(("source", "add", "suffix"), KINDS)
def test_a_file_that_turns_up_while_the_job_starts_is_told_of(tmp_path, looks, source, add, suffix):
    for number in range(3):
        add(tmp_path, f"b{number}.{suffix}", range(10 * number, 10 * number + 10))
    described = source(str(tmp_path), schema={"id": int})
    assert run(described, 2) == list(range(30))
    looks[3] = lambda: add(tmp_path, f"a.{suffix}", range(30, 33))
    with pytest.raises(
        InputError, match="source 'events': its subtasks 0 and 1 have not found the same input"
    ):
        run(described, 2)
    assert run(described, 2) == list(range(33))
    looks[6] = lambda: add(tmp_path, f"c.{suffix}", [33])
    assert run(described, 1) == list(range(34))


def test_a_file_that_grows_while_the_job_starts_is_told_of(tmp_path, looks):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"id": {number}}}\n' for number in range(20_000)))

    def grow():
        with open(path, "a") as file:
            file.writelines(f'{{"id": {number}}}\n' for number in range(20_000, 30_000))

    looks[1] = grow
    with pytest.raises(InputError, match="its subtasks 0 and 1 have not found the same input"):
        run(weir.JsonLines(str(path), schema={"id": int}), 2)


def test_splits_that_are_listed_otherwise_by_each_subtask_are_told_of():
    listed = iter([[1, 2, 3], [1, 2, 3], [1, 2, 3], [3, 2, 1]])

    class Numbers(weir.Source):
        def splits(self):
            return next(listed)

        def read(self, split, position):
            if position is None:
                yield [{"id": split}], 1

    described = weir.UserSource(Numbers, schema={"id": int})
    assert run(described, 2) == [1, 2, 3]
    with pytest.raises(InputError, match="are listed in no fixed order"):
        run(described, 2)
