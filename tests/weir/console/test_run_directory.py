import pytest

from weir.console.run_directory import RunDirectory
from weir.errors import AddressInUseError, ConfigError


def test_one_run_at_a_time_uses_a_directory(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    with directory.in_use():
        with pytest.raises(AddressInUseError, match="another weir run of this job"), directory.in_use():
            raise AssertionError
        with RunDirectory(tmp_path / "other").in_use():
            pass
    with directory.in_use():
        assert (tmp_path / "run/.gitignore").read_text() == "*\n"


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match="name another with --keep-dir"),
        RunDirectory(tmp_path / "file").in_use(),
    ):
        raise AssertionError


def test_checkpoints_of_the_latest_jobs_are_kept(tmp_path):
    import os

    for number in range(5):
        job = tmp_path / "checkpoints" / f"job-{number}"
        job.mkdir(parents=True)
        os.utime(job, (number, number))
    with RunDirectory(tmp_path).in_use():
        left = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert left == ["job-2", "job-3", "job-4"]


def test_each_task_manager_has_a_store_of_its_own(tmp_path):
    directory = RunDirectory(tmp_path)
    first, second = (directory.task_manager_settings(number)["taskManager.rocksDBPath"] for number in (1, 2))
    assert first != second
