"""Runs a module of a checkout under a profiler and notes when its functions are called (see ``journeys``).

python journey_profile.py TREE FILE MODULE [ARGUMENT...]
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

_SLOT_S = 0.05
_WRITTEN_EVERY_S = 0.5
_SHIPPED = ("weir", "control_plane", "task_manager")
#: What is called while modules are imported belongs to no batch.
_IMPORT = "import"
#: The phase in which the job's author and the planner work.
PLAN = "write and plan"
#: Functions below which a phase is on its way, by a part of their file's path and their own name.
_PHASES = {("journey_job.py", "build"): PLAN, ("weir", "physical_graph"): PLAN}


class Notes:
    """Slots of time in which each function was called."""

    def __init__(self, tree: Path) -> None:
        """Note functions of the files of ``tree``."""
        self._folders = tuple(f"{tree / package}{os.sep}" for package in _SHIPPED)
        self._tree = tree
        self._slots: dict[CodeType, set[int]] = defaultdict(set)
        self._globals: dict[CodeType, dict[str, Any]] = {}
        self._foreign: set[CodeType] = set()
        self._slot = 0
        self._phases: dict[str, set[CodeType]] = defaultdict(set)
        #: Of each thread: phases that it is in.
        self._within = threading.local()
        self._writing = threading.Lock()

    def called(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call; the profiler of every thread."""
        code = frame.f_code
        if code in self._foreign or event not in {"call", "return"}:
            return
        if code not in self._slots:
            if not self._is_ours(code) and not _phase(code):
                self._foreign.add(code)
                return
            self._globals[code] = frame.f_globals
        phase = _phase(code)
        within = self._within.__dict__.setdefault("phases", [])
        if event == "return":
            if phase and within:
                within.pop()
            return
        if phase:
            within.append(phase)
        if not within:
            self._slots[code].add(self._slot)
        elif code.co_name != "<module>":
            self._phases[within[-1]].add(code)

    def _is_ours(self, code: CodeType) -> bool:
        return code.co_filename.startswith(self._folders)

    def keep_writing(self, path: Path) -> None:
        """Write what is known, for as long as the process lives."""
        written_s = time.monotonic()
        while True:
            time.sleep(_SLOT_S)
            self._slot += 1
            if time.monotonic() - written_s >= _WRITTEN_EVERY_S:
                self.write(path)
                written_s = time.monotonic()

    def write(self, path: Path) -> None:
        """Write slots and kernels by function."""
        ours = [code for code in list(self._slots) if self._is_ours(code)]
        slots = {self._name(code): sorted(list(self._slots[code])) for code in ours}
        kernels = {self._name(code): sorted(_kernels(code, self._globals[code])) for code in ours}
        phases = {
            phase: sorted(self._name(code) for code in list(found) if self._is_ours(code))
            for phase, found in list(self._phases.items())
        }
        # The thread that keeps writing may be at it when the process ends.
        with self._writing:
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps({"slots": slots, "kernels": kernels, "phases": phases}))
            partial.replace(path)

    def _name(self, code: CodeType) -> str:
        module = ".".join(Path(code.co_filename).relative_to(self._tree).with_suffix("").parts)
        return f"{module}:{code.co_qualname}"


@functools.cache
def _phase(code: CodeType) -> str:
    if code.co_name == "<module>":
        return _IMPORT
    parts = Path(code.co_filename).parts
    return next(
        (phase for (part, name), phase in _PHASES.items() if name == code.co_name and part in parts), ""
    )


def _kernels(code: CodeType, names: dict[str, Any]) -> set[str]:
    """Modules of the kernels that a function names, and of those that they name."""
    found: set[FunctionType] = set()
    waiting = [(code, names)]
    while waiting:
        code, names = waiting.pop()
        for name in code.co_names:
            function = getattr(names.get(name), "py_func", None)
            if isinstance(function, FunctionType) and function not in found:
                found.add(function)
                waiting.append((function.__code__, function.__globals__))
    return {function.__module__ for function in found if function.__module__.split(".")[0] in _SHIPPED}


def main() -> None:
    """Run the module as ``python -m`` would do."""
    tree, path, module, *arguments = sys.argv[1:]
    notes = Notes(Path(tree))
    threading.Thread(target=notes.keep_writing, args=[Path(path).resolve()], daemon=True).start()
    sys.argv = [module, *arguments]
    sys.path[0] = tree
    threading.setprofile(notes.called)
    sys.setprofile(notes.called)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        notes.write(Path(path))


if __name__ == "__main__":
    main()
