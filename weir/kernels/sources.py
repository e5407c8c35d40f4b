"""What a module's compiled kernels are made of: its source and that of every module of its package it imports.

LLVM inlines parts of kernels across modules, and constants are frozen into them. So compiled code is as new as the
oldest of all that, and is kept under a digest of it: nothing has to be listed by hand, no time stamp is compared, and
two checkouts with the same sources share it. Imports no numba.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

log = logging.getLogger(__name__)

_VARIABLE = "NUMBA_CACHE_DIR"
_IMPORT = re.compile(r"^\s*(?:from ([\w.]+) import (\([^)]*\)|[^\n]*)|import ([\w.]+))", re.MULTILINE)
_WORD = re.compile(r"\w+")
#: Libraries whose code is in a kernel as well.
_COMPILERS = ("numba", "llvmlite", "numpy")
#: Hexadecimal digits of a digest: few modules have ever had so many versions that two would be alike.
_DIGITS = 20


@functools.cache
def digest_of(file: Path) -> str:
    """A digest of a module's source, of all modules that it imports from its own package and Weir, and the compilers.

    Args:
        file: of the module, absolute.
    """
    digest = hashlib.sha256(repr((sys.version_info[:3], *map(version, _COMPILERS))).encode())
    # By content alone: where a checkout lies must not count.
    for content in sorted(hashlib.sha256(each.read_bytes()).digest() for each in sources_of(file)):
        digest.update(content)
    return digest.hexdigest()[:_DIGITS]


def sources_of(file: Path) -> set[Path]:
    """A module's source, and those of all modules that it imports from its own package and Weir, however far."""
    found, pending = {file}, [file]
    while pending:
        for imported in _imported(pending.pop()):
            if imported not in found:
                found.add(imported)
                pending.append(imported)
    return found


@functools.cache
def _imported(file: Path) -> tuple[Path, ...]:
    return tuple(_found(file))


def _found(file: Path) -> Iterator[Path]:
    text = file.read_text(encoding="utf-8")
    for package, names, module in _IMPORT.findall(text):
        name = package or module
        yield from _source(name, file)
        if package:
            for word in _WORD.findall(names):
                yield from _source(f"{name}.{word}", file)


@functools.cache
def _source(name: str, importer: Path) -> tuple[Path, ...]:
    """The source of a module if it is beside Weir, or below a directory of ``importer``."""
    parts = name.split(".")
    if parts[0] == "weir":
        roots = [Path(__file__).parents[2]]
    else:
        roots = [parent.parent for parent in importer.parents if parent.name == parts[0]]
    files = (root.joinpath(*parts).with_suffix(".py") for root in roots)
    return tuple(file for file in files if file.is_file())


@functools.cache
def cache_directory() -> Path:
    """Where compiled kernels are kept: ``NUMBA_CACHE_DIR``, or the user's cache directory.

    Where that cannot be written, one of this process and its children only: what others may write must not be loaded
    as code.
    """
    if chosen := os.environ.get(_VARIABLE):
        return Path(chosen)
    from platformdirs import user_cache_path

    directory = user_cache_path("weir", appauthor=False) / "kernels"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError:
        directory = Path(tempfile.mkdtemp(prefix="weir-kernels-"))
        atexit.register(_remove, directory, os.getpid())
        os.environ[_VARIABLE] = str(directory)
        log.warning(
            "the user's cache directory cannot be written: kernels are compiled at every start; set %s",
            _VARIABLE,
        )
    return directory


def _remove(directory: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)
