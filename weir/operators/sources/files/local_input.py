"""Input files of this machine."""

from __future__ import annotations

import contextlib
import glob
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import unquote, urlsplit

from typing_extensions import override

from weir.errors import InputError
from weir.operators.sources.files.input_files import (
    FoundFile,
    InputFiles,
    is_found,
    is_part,
    is_uri,
    remote_files,
)

_GLOB_CHARACTERS = frozenset("*?[")


class LocalInput(InputFiles):
    """Input files of this machine."""

    def find(self, path: str, is_known: Callable[[str], bool] | None = None) -> list[FoundFile]:
        """Find files, as the base class says; a file that goes away meanwhile is left out."""
        return _found_files(path, is_known, may_be_empty=True)

    def size_bytes(self, path: str) -> int:
        """Return the size of a file, which is opened to learn whether that is allowed."""
        with open(path, "rb") as file:
            return file.seek(0, 2)

    @override
    def open(self, path: str) -> BinaryIO:
        return cast(BinaryIO, open(path, "rb", buffering=0))

    def arrow_source(self, path: str) -> Any:
        """Return the path: pyarrow opens the file itself."""
        return path


LOCAL_INPUT = LocalInput()


def input_place(path: str) -> tuple[InputFiles, str]:
    """Where an input is, and what :meth:`InputFiles.find` takes to find its files there.

    Raises:
        InputError: it is a URI that nobody understands.
    """
    if not is_uri(path):
        return LOCAL_INPUT, path
    parts = urlsplit(path)
    if parts.scheme == "file":
        return LOCAL_INPUT, unquote(parts.path)
    return remote_files(path), path


def list_input_files(path: str, may_be_empty: bool = False) -> list[str]:
    """Files of an input, sorted by name: a file, the parts of a directory, or the matches of a glob.

    In directories and matches, hidden files, ``_SUCCESS`` and other names with a leading underscore, and
    ``.crc`` files are left out, and so is what wildcards find in folders called like that (``_temporary``). A directory
    is not searched below its own level. A file named outright is taken whatever its name. With ``may_be_empty`` a
    directory or a glob may hold nothing yet.

    Raises:
        InputError: nothing is there, or it cannot be read.
    """
    return [file.path for file in _found_files(path, may_be_empty=may_be_empty)]


def folder_hint(path: str) -> str:
    """What to say of a directory with folders, whose files are not read; "": there are none."""
    try:
        with os.scandir(Path(path).expanduser()) as entries:
            has_folders = any(is_part(entry.name) and entry.is_dir() for entry in entries)
    except OSError:
        return ""
    return f"those of folders within it are read as {path}/**/*" if has_folders else ""


def _found_files(
    path: str, is_known: Callable[[str], bool] | None = None, *, may_be_empty: bool
) -> list[FoundFile]:
    """Find files, for :func:`list_input_files` and :meth:`InputFiles.find`."""
    if not path:
        raise InputError("the source has no input path: set it to a file, a directory of parts or a glob")
    target = Path(path).expanduser()
    try:
        if target.is_file():
            return _regular([str(target)])
        is_directory = target.is_dir()
        if is_directory:
            names = [os.path.join(target, name) for name in os.listdir(target) if is_part(name)]
            kind = "the directory holds no input files"
        elif target.exists():
            raise InputError(
                f"cannot read input {path}: it is {_kind_of(target)}, which cannot be read again from a position; "
                "write its lines to a file, and name that"
            )
        else:
            matches = _matches(str(target))
            names = [match for match in matches if is_found(match, str(target))]
            kind = "no file matches" if _GLOB_CHARACTERS & set(path) else "there is no such file or directory"
        files = _regular(sorted(names), is_known)
    except OSError as error:
        raise InputError(f"cannot read input {path}: {error.strerror}; check its permissions") from error
    if may_be_empty and (is_directory or _GLOB_CHARACTERS & set(path)):
        return files
    if not files:
        hint = folder_hint(path) if is_directory else ""
        kind += f" ({hint})" if hint else ""
        raise InputError(f"cannot read input {path}: {kind}; correct the path, or put files there first")
    return files


def _matches(pattern: str) -> list[str]:
    """What matches a glob; ``**`` searches each folder once, although links may lead to it again, or around."""
    parts = pattern.split(os.sep)
    if parts[-1] == "**":
        parts.append("*")
    if "**" not in parts:
        return glob.glob(pattern, recursive=True)
    first = parts.index("**")
    below = os.sep.join(parts[first + 1 :])
    base = os.sep.join(parts[:first])
    found: dict[str, None] = {}
    for folder in _folders_below(glob.glob(base or os.sep) if first else [os.curdir]):
        place = below if folder == os.curdir else os.path.join(glob.escape(folder), below)
        found.update(dict.fromkeys(_matches(place)))
    return list(found)


def _folders_below(tops: Iterable[str]) -> list[str]:
    """Folders, and those within them but hidden ones; links to folders only where these are not found without."""
    seen: set[tuple[int, int]] = set()
    folders: list[str] = []
    waiting, links = sorted(tops, reverse=True), list[str]()
    while waiting or links:
        if not waiting:
            waiting, links = sorted(links, reverse=True), []
        folder = waiting.pop()
        # What goes away meanwhile, or may not be read, has no folders, as for glob.
        with contextlib.suppress(OSError):
            status = os.stat(folder)
            if stat.S_ISDIR(status.st_mode) and (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                folders.append(folder)
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if not entry.name.startswith(".") and (entry.is_symlink() or entry.is_dir()):
                            path = entry.name if folder == os.curdir else entry.path
                            (links if entry.is_symlink() else waiting).append(path)
    return folders


def _regular(names: list[str], is_known: Callable[[str], bool] | None = None) -> list[FoundFile]:
    """Return the names that are files, or links to some; what goes away meanwhile is left out."""
    found = []
    for name in names:
        if is_known is not None and is_known(name):
            found.append(FoundFile(name, -1, 0))
            continue
        try:
            status = os.stat(name)
        except (FileNotFoundError, NotADirectoryError):
            continue
        if stat.S_ISREG(status.st_mode):
            found.append(FoundFile(name, status.st_size, status.st_mtime_ns // 1000))
    return found


def _kind_of(path: Path) -> str:
    if path.is_fifo():
        return "a FIFO"
    if path.is_socket():
        return "a socket"
    return "a device"
