"""Where compiled kernels are kept: by the digest of their sources, for all checkouts and processes of a user.

``DIRECTORY/MODULE-DIGEST/`` has Numba's files. Several processes may use it at the same time: a file is replaced as a
whole, and who compiles a kernel holds a lock of that kernel.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator

from weir.clock import SystemClock
from weir.kernels.sources import cache_directory, digest_of

log = logging.getLogger(__name__)

#: Digests of a module that are kept; older ones are removed if nobody has used them for some time.
DIGESTS_MAX = 8
_UNUSED_S = 24 * 3600


def directory_of(function: Callable[..., Any]) -> Path:
    """Where the kernels of a function's module are kept as its sources are now."""
    file = Path(function.__code__.co_filename).absolute()
    return cache_directory() / f"{function.__module__}-{digest_of(file)}"


class _Locator(_CacheLocator):
    """Tells Numba where a kernel is kept, and that what is there is current: the digest is in the path."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._line = function.__code__.co_firstlineno
        self._py_file = function.__code__.co_filename
        self._path = directory_of(function)

    def ensure_cache_path(self) -> None:
        """Called before a kernel is written."""
        if not self._path.is_dir():
            self._path.mkdir(parents=True, exist_ok=True)
            _remove_older(self._path)

    def get_cache_path(self) -> str:
        return str(self._path)

    def get_source_stamp(self) -> str:
        return self._path.name

    def get_disambiguator(self) -> str:
        return str(self._line)

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _Locator:
        return cls(py_func)


class _Results(CompileResultCacheImpl):
    _locator_classes: Any = (_Locator,)


_FunctionCache: Any = FunctionCache


class KernelCache(_FunctionCache):  # type: ignore[misc] # numba has no types
    """Keeps what was compiled; what cannot be read is compiled again, what cannot be written is not kept."""

    _impl_class = _Results

    def load_overload(self, sig: object, target_context: object) -> Any:
        """What was compiled for a signature, or None."""
        try:
            found = super().load_overload(sig, target_context)
        except Exception as error:
            log.warning("%s: %s: this kernel is compiled again", self.cache_path, error)
            with contextlib.suppress(OSError):
                self.flush()
            return None
        if found is not None:
            with contextlib.suppress(OSError):
                # It is in use: others are older.
                os.utime(self.cache_path)
        return found

    def save_overload(self, sig: object, data: object) -> None:
        """Keep what was compiled for a signature."""
        try:
            super().save_overload(sig, data)
        except OSError as error:
            log.warning("%s: %s: the kernel is compiled again at the next start", self.cache_path, error)

    def is_kept(self) -> bool:
        """Whether the disk seems to have it; asks for one file."""
        return Path(self.cache_path, f"{self._impl.filename_base}.nbi").exists()

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Wait until no other process compiles this kernel; one that is killed leaves nothing to wait for."""
        with contextlib.ExitStack() as stack:
            # Where nothing can be written, nobody finds what another one has compiled.
            with contextlib.suppress(OSError):
                self._impl.locator.ensure_cache_path()
                path = Path(self.cache_path, f"{self._impl.filename_base}.lock")
                fcntl.flock(stack.enter_context(path.open("a")), fcntl.LOCK_EX)
            yield


def _remove_older(directory: Path) -> None:
    """Remove other digests of the module that nobody has compiled for for long, but for the latest few."""
    module = directory.name.rpartition("-")[0]
    with contextlib.suppress(OSError):
        kept = sorted(
            directory.parent.glob(f"{module}-*"), key=lambda path: path.stat().st_mtime, reverse=True
        )
        for path in kept[DIGESTS_MAX:]:
            if path.stat().st_mtime < SystemClock().now_us() / 1e6 - _UNUSED_S:
                shutil.rmtree(path, ignore_errors=True)
