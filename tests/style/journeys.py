"""Counts the modules that a batch goes through, while a job runs on real processes (not part of ``make check``).

python -m tests.style.journeys json              # JSON lines, divided by key, counted, written to files
python -m tests.style.journeys window            # a window aggregate: to its plan, and from rows to results
python -m tests.style.journeys json --tree DIR   # of another checkout

Two task managers and a control plane run under a profiler that notes in which slots of 50 ms each function of ours is
called. A slot is busy if the sink gets rows in it. A module is on the way if one of its functions is called in half of
the busy slots; what is called once a second (heartbeats, checkpoints, metrics) is not. Compiled kernels cannot be
profiled: those on the way are the ones that functions on the way name, and those that these kernels name. The plan of a
window aggregate is what the job's ``build`` and the planner call. Its deployment is not counted: at run time that is
all that starts a job. Two runs can differ by a few modules that are called now and then.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.ports import free_port
from tests.style.journey_profile import PLAN

ROOT = Path(__file__).parents[2]
_ROWS, _KEYS, _TASK_MANAGERS = 6_000_000, 50_000, 2
#: Both commits that are compared write files here.
_SINK = "part_files"
_BUSY_SHARE = 0.5
_TIMEOUT_S = 180.0

_JOBS = {
    "json": """
import weir

def build(input, output):
    flow = weir.Dataflow("journey")
    rows = flow.source("rows", weir.JsonLines(input, schema={"at": int, "key": str, "n": int}), parallelism=2)
    rows.key_by("key").count("count", parallelism=2).sink("out", weir.JsonLinesSink(output))
    return flow
""",
    "window": """
import weir

def build(input, output):
    flow = weir.Dataflow("journey")
    source = weir.JsonLines(input, schema={"at": int, "key": str, "n": int}, event_time="at")
    rows = flow.source("rows", source, parallelism=2)
    windows = rows.key_by("key").window(weir.tumbling(100))
    windows.aggregate("totals", total=weir.sum("n"), parallelism=2).sink("out", weir.JsonLinesSink(output))
    return flow
""",
}


def main() -> int:
    """Print the modules on the way and how many there are; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("journey", choices=sorted(_JOBS))
    parser.add_argument("--tree", type=Path, default=ROOT, help="checkout whose modules are counted")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        phases = measured(arguments.journey, arguments.tree.resolve(), Path(directory))
    for phase, modules in phases.items():
        print(f"{phase}: {len(modules)}")
        print("".join(f"  {module}\n" for module in sorted(modules)), end="")
    print(f"modules on the way: {len(set().union(*phases.values()))}")
    return 0


def measured(journey: str, tree: Path, directory: Path) -> dict[str, set[str]]:
    """Run the job of a journey and return its modules by phase."""
    (directory / "journey_job.py").write_text(_JOBS[journey])
    with (directory / "in.jsonl").open("w") as lines:
        for number in range(_ROWS):
            key = number * 7919 % _KEYS
            lines.write(f'{{"at": {number // 100}, "key": "key-{key}", "n": {number % 1000}}}\n')
    grpc_port, http_port = free_port(), free_port()
    settings = ["--set", "taskManager.batch_size=4096", "--set", "controlPlane.state_path=record.json"]
    control_plane = [
        *("control_plane", "--job", "journey_job", "--task-managers", str(_TASK_MANAGERS)),
        *("--port", str(grpc_port), "--http-port", str(http_port), "--exit-when-finished"),
        *("--param", f"input={directory / 'in.jsonl'}", "--param", f"output={directory / 'out'}"),
    ]
    task_manager = ["task_manager", "--control-plane", f"127.0.0.1:{grpc_port}"]
    with contextlib.ExitStack() as started:
        popens = [
            started.enter_context(_profiled(tree, directory, name, [*arguments, *settings]))
            for name, arguments in [
                ("control_plane", control_plane),
                *(
                    (
                        f"tm{number}",
                        [
                            *task_manager,
                            "--port",
                            str(free_port()),
                            "--set",
                            f"taskManager.rocksDBPath={number}.db",
                        ],
                    )
                    for number in range(_TASK_MANAGERS)
                ),
            ]
        ]
        for popen in popens:
            popen.wait(_TIMEOUT_S)
    names = ["control_plane", *(f"tm{number}" for number in range(_TASK_MANAGERS))]
    noted = [json.loads((directory / f"{name}.json").read_text()) for name in names]
    phases = {"run": set().union(*map(on_the_way, noted[1:]))}
    if journey == "window":
        found = [name for process in noted for name in process["phases"].get(PLAN, ())]
        phases[PLAN] = set(map(_module, found))
    return phases


def on_the_way(noted: dict[str, Any]) -> set[str]:
    """Return the modules that a process's batches went through, by what its profiler has noted."""
    slots = noted["slots"]
    busy = set().union(*(found for name, found in slots.items() if _module(name).endswith(_SINK)))
    least = max(_BUSY_SHARE * len(busy), 1)
    names = [name for name, found in slots.items() if len(busy.intersection(found)) >= least]
    return {_module(name) for name in names} | {
        module for name in names for module in noted["kernels"].get(name, ())
    }


def _module(name: str) -> str:
    return name.partition(":")[0]


@contextlib.contextmanager
def _profiled(
    tree: Path, directory: Path, name: str, arguments: list[str]
) -> Iterator[subprocess.Popen[bytes]]:
    log = (directory / f"{name}.log").open("wb")
    popen = subprocess.Popen(
        [
            sys.executable,
            str(Path(__file__).with_name("journey_profile.py")),
            str(tree),
            f"{name}.json",
            *arguments,
        ],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": f"{tree}{os.pathsep}{directory}"},
        stdout=log,
        stderr=log,
    )
    try:
        yield popen
    finally:
        popen.kill()
        popen.wait()
        if popen.returncode:
            sys.stderr.write((directory / f"{name}.log").read_text())


if __name__ == "__main__":
    sys.exit(main())
