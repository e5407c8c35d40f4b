import os

import pytest

from weir.console.job_files import JobFile, find_job
from weir.errors import GraphError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory."""
    monkeypatch.chdir(tmp_path)
    for name in (
        "counts.py",
        "dir/counts.py",
        "dir/my-job.py",
        "package/__init__.py",
        "package/inner/__init__.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "package/inner/counts.py").touch()
    return tmp_path


def test_a_file_becomes_a_module_that_is_looked_for_beside_it(folder):
    assert find_job("counts.py") == JobFile("counts", folder)
    assert find_job("./dir/counts.py") == JobFile("counts", folder / "dir")
    assert find_job(str(folder / "dir/counts.py")) == JobFile("counts", folder / "dir")


def test_a_file_of_a_package_keeps_its_place_in_it(folder):
    assert find_job("package/inner/counts.py") == JobFile("package.inner.counts", folder)


def test_a_module_stays_one(folder):
    assert find_job("counts") == JobFile("counts")
    assert find_job("package.inner.counts") == JobFile("package.inner.counts")
    assert find_job("weir.examples.word_count") == JobFile("weir.examples.word_count")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("countz.py", "there is no such file in .*; did you mean 'counts.py'\\?"),
        ("dir/countz.py", "there is no such file in .*; did you mean 'dir/counts.py'\\?"),
        ("no_folder/counts.sql", "there is no such file in [^;]*$"),
        ("countz", "there is no module countz in .*; did you mean 'counts'\\?"),
        ("dir/counts", "is no Python file"),
        ("dir", None),
        ("dir/my-job.py", "rename it, for example to my_job.py"),
    ],
)
def test_a_typo_is_one_line(folder, text, reason):
    if reason is None:
        assert find_job(text) == JobFile(text)
        return
    with pytest.raises(GraphError, match=reason) as raised:
        find_job(text)
    assert "\n" not in str(raised.value)
    assert text in str(raised.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("types.py", "types is also a module that Weir needs; rename the file, for example to types_job.py"),
        ("dir/polars.py", "polars is also a module that Weir needs; rename the file"),
        (
            "calendar/counts.py",
            "calendar is also a module that Weir needs; rename the folder, .* calendar_job",
        ),
    ],
)
def test_a_job_does_not_take_the_place_of_a_module_that_weir_needs(folder, text, reason):
    path = folder / text
    path.parent.mkdir(exist_ok=True)
    path.touch()
    if path.parent.name == "calendar":
        (path.parent / "__init__.py").touch()
    with pytest.raises(GraphError, match=reason):
        find_job(text)


@pytest.mark.parametrize("neighbour", ["queue.py", "dir/queue.py"])
def test_no_other_file_takes_the_place_of_a_module_that_weir_needs(folder, neighbour):
    (folder / neighbour).touch()
    with pytest.raises(
        GraphError, match=rf"/{neighbour}: .* in place of Python's own module queue; rename it"
    ):
        find_job("dir/counts.py")


def test_a_folder_is_no_job(folder):
    with pytest.raises(GraphError, match=r"job \. is no Python file; name a file such as counts.py"):
        find_job(".")


def test_the_jobs_folder_comes_before_the_working_directory(folder):
    path = find_job("dir/counts.py").python_path({"PYTHONPATH": os.pathsep.join(["/one", str(folder)])})
    assert path == [str(folder / "dir"), str(folder), "/one"]
    assert find_job("counts").python_path({}) == [str(folder)]
