"""What the user calls a job, a module (``my_jobs.counts``) or a file (``dir/counts.py``), and how it is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from weir.errors import GraphError
from weir.spelling import did_you_mean_file, did_you_mean_only

_SUFFIX = ".py"
_SQL_SUFFIX = ".sql"
#: The job that a file of SQL is a parameter of.
_SQL_JOB = "weir.sql.job"
#: What a job's processes import by these names: a file of the same name would be imported in its place.
_TAKEN = sys.stdlib_module_names | {
    "control_plane",
    "grpc",
    "numba",
    "numpy",
    "polars",
    "pyarrow",
    "pydantic",
    "rocksdict",
    "task_manager",
    "weir",
}


@dataclass(frozen=True)
class JobFile:
    """A job as every process imports it: a module's name, and where to look for it first.

    All processes must know the same name: it is part of the job's fingerprint.
    """

    module: str
    #: Before the working directory on the Python path; None: the job was given as a module.
    directory: Path | None = None
    #: Parameters that the file itself stands for, NAME=VALUE.
    parameters: tuple[str, ...] = ()
    #: What messages and folders call it, if that is not the module.
    title: str = ""

    @property
    def name(self) -> str:
        """What messages and the run's folder call the job."""
        return self.title or self.module

    def python_path(self, environment: Mapping[str, str]) -> list[str]:
        """Folders for PYTHONPATH: the job's, the working directory, and what the variable has already."""
        first = [] if self.directory is None else [str(self.directory)]
        rest = environment.get("PYTHONPATH", "").split(os.pathsep)
        return list(dict.fromkeys([*first, os.getcwd(), *filter(None, rest)]))


def find_job(text: str) -> JobFile:
    """The job that the user named.

    A file below a package (a folder with ``__init__.py``) becomes a module of that package: its own imports work.

    Raises:
        GraphError: there is no such file or module, or its name is none that Python can import, or that of a
            module which every process needs; or another file beside it or in the working directory has such a name.
    """
    found = _find_job(text)
    for folder in {found.directory or Path.cwd(), Path.cwd()}:
        _check_folder(folder)
    return found


def _find_job(text: str) -> JobFile:
    if text.endswith(_SQL_SUFFIX):
        path = Path(text)
        if not path.is_file():
            raise GraphError(f"job {text}: there is no such file in {Path.cwd()}{did_you_mean_file(text)}")
        return JobFile(_SQL_JOB, parameters=(f"file={path.resolve()}",), title=path.stem)
    if not text.endswith(_SUFFIX) and os.sep not in text and text not in (os.curdir, os.pardir):
        _check_module(text)
        return JobFile(text)
    path = Path(text)
    if path.is_dir() or not text.endswith(_SUFFIX):
        raise GraphError(
            f"job {text} is no Python file; name a file such as counts.py or hot.sql, or a module such as jobs.counts"
        )
    if not path.is_file():
        raise GraphError(f"job {text}: there is no such file in {Path.cwd()}{did_you_mean_file(text)}")
    path = path.resolve()
    if not path.stem.isidentifier():
        raise GraphError(
            f"job {text}: Python cannot import a file of this name; rename it, for example to "
            f"{''.join(c if c.isalnum() else '_' for c in path.stem)}.py"
        )
    names, directory = [path.stem], path.parent
    while (directory / "__init__.py").is_file() and directory.name.isidentifier():
        names.insert(0, directory.name)
        directory = directory.parent
    if names[0] in _TAKEN:
        kind = "file" if len(names) == 1 else "folder"
        raise GraphError(
            f"job {text}: {names[0]} is also a module that Weir needs; rename the {kind}, for example to "
            f"{names[0]}_job{_SUFFIX if kind == 'file' else ''}"
        )
    return JobFile(".".join(names), directory)


def _check_folder(folder: Path) -> None:
    """Refuse files that processes would import in place of Python's own modules: none of them would even start."""
    # What this process has imported, the others need, too.
    needed = sys.stdlib_module_names & sys.modules.keys()
    for name in sorted(path.stem for path in folder.glob(f"*{_SUFFIX}")):
        if name in needed:
            raise GraphError(
                f"{folder / (name + _SUFFIX)}: processes of the job would import this file in place of Python's own "
                f"module {name}; rename it"
            )


def _check_module(name: str) -> None:
    """Look for the package of a module, without importing it: a typo is told before anything starts."""
    package = name.partition(".")[0]
    finder_path = [os.getcwd(), *sys.path]
    if package.isidentifier() and not PathFinder.find_spec(package, finder_path) and not find_spec(package):
        near = did_you_mean_only(name, _jobs_of(Path.cwd()))
        raise GraphError(
            f"job {name}: there is no module {package} in {os.getcwd()} or on the Python path{near}"
        )


def _jobs_of(folder: Path) -> list[str]:
    """What a folder has that may be a job, as it is named."""
    names = [each.name for each in folder.iterdir()]
    return [
        each.removesuffix(_SUFFIX)
        for each in names
        if each.endswith((_SUFFIX, _SQL_SUFFIX)) or "." not in each
    ]
