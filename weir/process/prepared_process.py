"""``python -m weir.process.prepared_process MODULE FD``: a process of ``weir run`` before it knows what it has to do.

It imports what ``python -m MODULE`` needs, reads the arguments from the socket ``FD``
(:mod:`weir.process.lifeline`), and is
that process from then on.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys

from weir.process.lifeline import Message, Parent

#: Imported meanwhile, beside the module's ``__main__``: what every job needs of it.
_NEEDED = {
    "control_plane": ("control_plane.process", "weir.config"),
    "task_manager": ("task_manager.process", "weir.config", "weir.dataflow.loading"),
    "log_broker": ("log_broker.process",),
}


def order(python_path: str, arguments: list[str]) -> Message:
    """The message that says what to do.

    Args:
        python_path: ``PYTHONPATH`` of the process, where the job's module is looked for.
        arguments: of ``python -m MODULE``, without ``--parent-fd``.
    """
    return {"python_path": python_path, "arguments": arguments}


def main() -> None:
    """Become the process; never returns."""
    # Importing makes objects that stay: looking for garbage among them costs a tenth of the time. The process's own
    # code switches the collector on again.
    gc.disable()
    module, fd = sys.argv[1], int(sys.argv[2])
    parent = Parent.at(fd)
    entry = importlib.import_module(f"{module}.__main__")
    for name in _NEEDED[module]:
        importlib.import_module(name)
    told = parent.receive()
    os.environ["PYTHONPATH"] = told["python_path"]
    sys.path[:0] = [folder for folder in told["python_path"].split(os.pathsep) if folder not in sys.path]
    importlib.invalidate_caches()
    arguments = ["--parent-fd", str(fd), *told["arguments"]]
    sys.argv = [module, *arguments]
    entry.app(args=arguments, prog_name=f"python -m {module}")


if __name__ == "__main__":
    main()
