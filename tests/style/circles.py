"""Finds circles of files (``make check``): imports for types and in functions count, too."""

from __future__ import annotations

import sys
from graphlib import CycleError, TopologicalSorter

import grimp

SHIPPED = ("weir", "control_plane", "task_manager", "log_broker")


def circle(packages: tuple[str, ...] = SHIPPED) -> list[str]:
    """Return the modules of a circle, the first one again at the end; empty: there is none."""
    graph = grimp.build_graph(*packages, exclude_type_checking_imports=False)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def main() -> int:
    """Print what was found; returns the exit code."""
    found = circle()
    if found:
        print(f"circle of imports: {' <- '.join(found)}", file=sys.stderr)
        return 1
    print("circles of files: 0")
    return 0


if __name__ == "__main__":
    sys.exit(main())
