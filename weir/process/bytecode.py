"""Where compiled modules are kept if Python was told to keep none (``PYTHONDONTWRITEBYTECODE``, as in many containers).

Without them each process compiles half a million lines of its libraries at every start, for two seconds. What must not
be written beside the sources is kept in the user's cache directory instead.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import cache_from_source, find_spec
from pathlib import Path

#: Ours, and the largest libraries.
_PACKAGES = ("weir", "numba", "polars")


def variables() -> Mapping[str, str]:
    """Environment variables for processes to come; none where compiled modules are kept, or nothing can be written."""
    if not sys.dont_write_bytecode or sys.pycache_prefix is not None or all(map(_is_compiled, _PACKAGES)):
        return {}
    from platformdirs import user_cache_path

    directory = user_cache_path("weir", appauthor=False) / "bytecode"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return {}
    if not os.access(directory, os.W_OK):
        return {}
    # An empty variable counts as none.
    return {"PYTHONPYCACHEPREFIX": str(directory), "PYTHONDONTWRITEBYTECODE": ""}


def keep() -> None:
    """Keep compiled modules of this process and of those that it starts; called before it imports much."""
    found = variables()
    if found:
        os.environ.update(found)
        sys.pycache_prefix = found["PYTHONPYCACHEPREFIX"]
        sys.dont_write_bytecode = False


def _is_compiled(package: str) -> bool:
    spec = find_spec(package)
    return spec is None or spec.origin is None or Path(cache_from_source(spec.origin)).exists()
