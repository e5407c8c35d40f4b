"""Compiles the Numba kernels ahead, and says so: the first run on a machine would be silent for a minute or two.

Kernels declare their signatures and ``cache=True``: importing a module compiles what its cache lacks. Entry points call
:func:`prepare_kernels` before they import the rest; ``python -m weir.kernel_compilation`` compiles those of the demo
jobs too.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import importlib
import logging
import os
import pkgutil
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from weir.clock import Clock, SystemClock
from weir.kernel_workers import compile_side_by_side, processes_for

log = logging.getLogger(__name__)

#: Modules of Weir with kernels, those that take longest first; looking for them takes longer than a warm start may.
#: A test compares.
KERNEL_MODULES = (
    "weir.operators.sources.json_scan",
    "weir.operators.sources.json_lists",
    "weir.operators.sources.json_late",
    "weir.state.tables.packed_pane_kernels",
    "weir.state.tables.slot_kernels",
    "weir.operators.sources.csv_scan",
    "weir.operators.joins.join_kernels",
    "weir.operators.joins.change_kernels",
    "weir.operators.sources.parquet_packed",
    "weir.operators.sources.parquet_window",
    "weir.key_kernels",
    "weir.kernel_bytes",
    "weir.kernels",
    "weir.operators.joins.recent_kernels",
    "weir.operators.joins.row_kernels",
    "weir.operators.keyed.aggregate_kernels",
    "weir.operators.keyed.row_kernels",
    "weir.operators.stateless.busy",
    "weir.operators.text_masks",
    "weir.operators.kernel_types",
    "weir.operators.sources.float_digits",
    "weir.operators.sources.parquet_kernels",
    "weir.operators.sources.parquet_division",
    "weir.operators.sources.parquet_header_kernels",
    "weir.operators.sources.parquet_snappy",
    "weir.operators.sources.parquet_lz4",
    "weir.operators.sinks.latency_format",
    "weir.operators.sources.line_shapes",
    "weir.state.tables.slot_layout",
    "weir.state.tables.slot_choice_kernels",
    "weir.state.tables.slot_key_kernels",
    "weir.state.tables.window_kernels",
    "weir.operators.windows.fold_kernels",
    "weir.operators.windows.running_kernels",
    "weir.operators.aggregation.value_kernels",
    "weir.operators.aggregation.decimal_kernels",
    "weir.operators.aggregation.part_kernels",
)
#: Of these, modules without a kernel of their own: no cache is written for them.
_ONLY_INLINED = frozenset(
    {
        "weir.kernel_bytes",
        "weir.kernels",
        "weir.operators.text_masks",
        "weir.operators.kernel_types",
        "weir.operators.sources.csv_tokens",
        "weir.operators.sources.float_digits",
        "weir.operators.sources.json_tokens",
        "weir.operators.sources.parquet_window",
        "weir.state.tables.slot_layout",
    }
)
#: Packages that may hold kernels.
_PACKAGES = ("weir", "task_manager", "jobs")
_IMPORTS_NUMBA = re.compile(r"^(import numba|from (numba|weir\.operators\.kernel_types))\b", re.MULTILINE)
_CACHE_VARIABLE = "NUMBA_CACHE_DIR"
_INDEX_SUFFIX = ".nbi"


@dataclass(frozen=True, slots=True)
class KernelProgress:
    """A module whose kernels are being compiled, or were."""

    #: Which module it is, from 1, of how many.
    number: int
    total: int
    module: str
    #: How long it took; None: it begins.
    seconds: float | None = None

    def __str__(self) -> str:
        took = "..." if self.seconds is None else f" {self.seconds:.1f} s"
        return f"compiling kernels (once): {self.number} of {self.total}, {self.module}{took}"


def prepare_kernels() -> None:
    """Compile what the cache lacks and show the progress on standard error: bars on a terminal, else lines in the log.

    Takes a millisecond where nothing is missing. Entry points call it before numba is imported.
    """
    if not sys.stderr.isatty():
        compile_kernels(_log_progress, SystemClock())
        return
    if not kernels_missing():
        return
    from rich.console import Console
    from rich.status import Status

    with Status("compiling kernels (once)", console=Console(stderr=True)) as shown:
        compile_kernels(lambda progress: shown.update(str(progress)), SystemClock())


def compile_kernels(report: Callable[[KernelProgress], None], clock: Clock) -> None:
    """Compile Weir's kernels unless the cache has them; calls ``report`` at the beginning and end of each module.

    Processes compile them side by side where there are several processors. One call at a time does it on a machine:
    others wait, and find all in the cache. Nothing is reported, and nothing imported, where the cache has everything.
    What the cache cannot be asked ahead (it is of other source code, or of another processor) is compiled, and
    reported, all the same.
    """
    choose_cache_directory()
    if not kernels_missing():
        return
    with _alone():
        missing = sum(not _is_cached(source) for source in _sources())
        if missing and not (missing > 1 and _compile_in_processes(KERNEL_MODULES, missing, report)):
            _compile_here(report, clock)
        _mark_as_current()


def _compile_in_processes(
    modules: Sequence[str], missing: int, report: Callable[[KernelProgress], None]
) -> bool:
    """Returns whether all is compiled now; if not, why is logged."""
    processes = processes_for(missing)
    if processes < 2:
        return False
    begun: list[str] = []
    passed: list[str] = []

    def began(name: str) -> None:
        begun.append(name)
        report(KernelProgress(len(begun) + len(passed), len(modules), name))

    def ended(name: str, seconds: float) -> None:
        if name in begun:
            report(KernelProgress(begun.index(name) + len(passed) + 1, len(modules), name, seconds))
        else:
            passed.append(name)

    failures = compile_side_by_side(modules, processes, began, ended)
    for failure in failures:
        log.warning("%s: the kernels that are missing are compiled by this one", failure)
    return not failures


def _compile_here(report: Callable[[KernelProgress], None], clock: Clock) -> None:
    from numba.core import event

    compiled: list[str] = []
    number = 0

    class Listener(event.Listener):
        """Hears of compilations only, not of kernels that come from the cache."""

        def on_start(self, event: object) -> None:
            if KERNEL_MODULES[number - 1] not in compiled:
                compiled.append(KERNEL_MODULES[number - 1])
                report(KernelProgress(number, len(KERNEL_MODULES), compiled[-1]))

        def on_end(self, event: object) -> None:
            """One of several of the module."""

    with event.install_listener("numba:compile", Listener()):
        for number, name in enumerate(KERNEL_MODULES, start=1):
            began_s = clock.monotonic_s()
            importlib.import_module(name)
            if name in compiled:
                report(KernelProgress(number, len(KERNEL_MODULES), name, clock.monotonic_s() - began_s))


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Wait until no other process compiles into this cache; one that is killed leaves nothing to wait for."""
    chosen = os.environ.get(_CACHE_VARIABLE)
    directory = Path(chosen) if chosen else Path(__file__).parent / "__pycache__"
    with contextlib.ExitStack() as stack:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context((directory / "weir-kernels.lock").open("a"))
        except OSError:
            # Then Numba says what is wrong with the directory.
            yield
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("another process compiles the kernels: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def kernels_missing() -> bool:
    """Whether the cache seems to lack kernels: a module has none there, or older ones than its source."""
    return not all(_is_cached(source) for source in _sources())


def choose_cache_directory() -> None:
    """Choose where kernels are kept, if it is not beside their source: that may be read-only. Before numba is imported.

    Numba has a place of its own in the home directory for that, but raises where there is no home either.
    """
    package = Path(__file__).parent
    beside = package / "__pycache__"
    if os.environ.get(_CACHE_VARIABLE) or os.access(beside if beside.exists() else package, os.W_OK):
        return
    from platformdirs import user_cache_path

    directory = user_cache_path("weir", appauthor=False) / "kernels"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError:
        # Of this process only: what others may write must not be loaded as code.
        directory = Path(tempfile.mkdtemp(prefix="weir-kernels-"))
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        log.warning(
            "neither %s nor a cache directory of the user can be written: kernels are compiled at every start; set %s",
            beside,
            _CACHE_VARIABLE,
        )
    os.environ[_CACHE_VARIABLE] = str(directory)


def _sources() -> Iterator[Path]:
    root = Path(__file__).parent
    for name in KERNEL_MODULES:
        if name not in _ONLY_INLINED:
            yield root.joinpath(*name.split(".")[1:]).with_suffix(".py")


def _indices(source: Path) -> Iterator[Path]:
    """The files in which numba keeps what it compiled of a module, as it names them."""
    version = f".py{sys.version_info.major}{sys.version_info.minor}"
    return (
        file
        for file in cache_directory(source).glob(f"{source.stem}.*{_INDEX_SUFFIX}")
        if file.name.removesuffix(_INDEX_SUFFIX).endswith(version)
    )


def cache_directory(source: Path) -> Path:
    """Where numba keeps the kernels of a source file; a test compares it with numba's own answer."""
    chosen = os.environ.get(_CACHE_VARIABLE)
    if not chosen:
        return source.parent / "__pycache__"
    path = os.path.abspath(source.parent)
    return Path(chosen) / f"{os.path.basename(path)}_{hashlib.sha1(path.encode()).hexdigest()}"


def _is_cached(source: Path) -> bool:
    changed_ns = source.stat().st_mtime_ns
    oldest_ns = min((file.stat().st_mtime_ns for file in _indices(source)), default=0)
    return oldest_ns >= changed_ns


def _mark_as_current() -> None:
    """All kernels are there now. Files that were older than the source had its content all the same."""
    for source in _sources():
        for file in _indices(source):
            with contextlib.suppress(OSError):
                os.utime(file)


def _log_progress(progress: KernelProgress) -> None:
    log.info("%s", progress)


def kernel_modules() -> Iterator[str]:
    """Names of all modules whose source imports numba or its types; the others are not imported."""
    for package in _PACKAGES:
        spec = find_spec(package)
        for path in (spec.submodule_search_locations or []) if spec else []:
            for name, file in _modules_below(Path(path), f"{package}."):
                if _IMPORTS_NUMBA.search(file.read_text(encoding="utf-8")):
                    yield name


def _modules_below(directory: Path, prefix: str) -> Iterator[tuple[str, Path]]:
    for info in pkgutil.iter_modules([str(directory)]):
        if info.ispkg:
            yield from _modules_below(directory / info.name, f"{prefix}{info.name}.")
        else:
            yield f"{prefix}{info.name}", directory / f"{info.name}.py"


def main() -> int:
    """Compile and import each of them, and say how long that took."""
    choose_cache_directory()
    clock = SystemClock()
    names = list(kernel_modules())
    # Those that take longest first, as far as it is known.
    names.sort(key=lambda name: KERNEL_MODULES.index(name) if name in KERNEL_MODULES else len(KERNEL_MODULES))
    told: set[str] = set()

    def tell(name: str, seconds: float) -> None:
        if name not in told:
            told.add(name)
            print(f"  kernels of {name}: {seconds:.1f} s", flush=True)

    with _alone():
        missing = sum(not _is_cached(source) for source in _sources())
        if missing > 1 and (processes := processes_for(missing)) > 1:
            for failure in compile_side_by_side(names, processes, lambda name: None, tell):
                print(f"  {failure}", file=sys.stderr)
        # All of them where there is one processor, and what is missing.
        for name in names:
            began_s = clock.monotonic_s()
            importlib.import_module(name)
            tell(name, clock.monotonic_s() - began_s)
    return 0


if __name__ == "__main__":
    sys.exit(main())
