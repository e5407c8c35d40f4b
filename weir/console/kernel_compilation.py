"""Compiles kernels ahead: all of Weir's, or those that a job may need. ``weir compile`` calls it.

Which those are is read from the sources: the modules of a job's steps, and all that they import.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from weir.kernels.sources import sources_of
from weir.kernels.workers import compile_side_by_side, processes_for
from weir.plan.graph import PhysicalGraph

_ROOT = Path(__file__).parents[2]
_HAS_KERNELS = re.compile(
    r"^from weir\.kernels\.declare import (\([^)]*|.*)\b(byte_kernel|brief_kernel|kernel)\b", re.MULTILINE
)
#: What every job's subtasks load beside the modules of its steps.
_ALWAYS = ("weir.keys.division", "weir.state.tables.opened")


def all_kernels() -> list[str]:
    """Names of all of Weir's kernels, with their modules; imports them and numba."""
    return _kernels_in(sorted((_ROOT / "weir").rglob("*.py")))


def kernels_of(graph: PhysicalGraph) -> list[str]:
    """Names of the kernels that a job may need: those in what its steps' modules import; imports them and numba."""
    runtimes = {node.spec.runtime.partition(":")[0] for stage in graph.stages for node in stage.nodes}
    files: set[Path] = set()
    for name in (*runtimes, *_ALWAYS):
        spec = find_spec(name) if name else None
        if spec is not None and spec.origin is not None:
            files |= sources_of(Path(spec.origin))
    return _kernels_in(sorted(files))


def compile_kernels(names: Collection[str], ended: Callable[[str, float], None]) -> list[str]:
    """Compile what the cache lacks of these kernels, on all processors; blocks for seconds to minutes.

    Args:
        names: of kernels, with their modules.
        ended: called with each kernel, and the seconds that it took; 0: the cache had it.

    Returns:
        What went wrong, a line for each process that ended before its time.
    """
    longest_first = sorted(names, key=_bytes_of, reverse=True)
    return compile_side_by_side(longest_first, processes_for(len(names)), ended)


def _kernels_in(files: Iterable[Path]) -> list[str]:
    from weir.kernels.declare import kernel_names

    modules = set(_modules_with_kernels(files))
    for module in modules:
        importlib.import_module(module)
    return [name for name in kernel_names() if name.rpartition(".")[0] in modules]


def _modules_with_kernels(files: Iterable[Path]) -> Iterator[str]:
    for file in files:
        if file.is_relative_to(_ROOT / "weir") and _HAS_KERNELS.search(file.read_text(encoding="utf-8")):
            yield ".".join(file.relative_to(_ROOT).with_suffix("").parts)


@functools.cache
def _bytes_of_module(module: str) -> int:
    file = _ROOT.joinpath(*module.split(".")).with_suffix(".py")
    return sum(each.stat().st_size for each in sources_of(file))


def _bytes_of(kernel: str) -> int:
    return _bytes_of_module(kernel.rpartition(".")[0])
