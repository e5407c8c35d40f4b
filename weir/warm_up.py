"""``python -m weir.warm_up``: compile the Numba kernels ahead, so that the first job does not wait for it.

Kernels declare their signatures and ``cache=True``: importing a module compiles what its cache lacks.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

#: Packages that may hold kernels.
_PACKAGES = ("weir", "task_manager", "jobs")
_IMPORTS_NUMBA = re.compile(r"^(import|from) numba\b", re.MULTILINE)


def kernel_modules() -> Iterator[str]:
    """Names of all modules whose source imports numba; the others are not imported."""
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
    """Import each of them and say how long it took."""
    for name in kernel_modules():
        began_s = time.monotonic()
        importlib.import_module(name)
        print(f"  kernels of {name}: {time.monotonic() - began_s:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
