"""A run without compiled kernels: other processes compile what it will call, from the end, beside the run itself.

The run compiles from the beginning; where both come to the same one, one waits for the other.
"""

from __future__ import annotations

import os
import subprocess

from weir.kernel_workers import PROCESSES_MAX, start
from weir.kernels import is_loaded_or_kept

#: Kernels that nearly all jobs call whose steps import their modules, about in the order of the first calls.
USUAL = (
    "weir.state.tables.slot_kernels.rebuild_index",
    "weir.key_kernels.hash_bytes",
    "weir.key_kernels.order_by_destination",
    "weir.state.tables.window_kernels.entry_keys",
    "weir.state.tables.slot_kernels.probe",
    "weir.state.tables.slot_kernels.insert_missing",
    "weir.state.tables.slot_choice_kernels.are_in_groups_of",
    "weir.state.tables.window_kernels.slots_between",
    "weir.state.tables.window_kernels.pane_ends",
    "weir.operators.windows.fold_kernels.count",
    "weir.key_kernels.groups_of_hashes",
    "weir.operators.keyed.aggregate_kernels.running_count",
    "weir.state.tables.window_kernels.split_keys",
    "weir.state.tables.window_kernels.ends_of_slots",
    "weir.state.tables.slot_choice_kernels.slots_with",
    "weir.state.tables.slot_key_kernels.sort_words",
    "weir.state.tables.slot_key_kernels.encode_state_keys",
)
#: For fewer no process is worth its start.
_KERNELS_MIN = 4

#: They end when they have compiled what they were told, and are not waited for.
_processes: list[subprocess.Popen[str]] = []


def compile_usual_beside() -> int:
    """Begin to compile the usual kernels of imported modules that the disk lacks; does not block.

    Called when a job's modules are loaded, before its first row.

    Returns:
        How many processes were started: none where there is one processor, or little to do.
    """
    _processes[:] = [process for process in _processes if process.poll() is None]
    lacking = [name for name in USUAL if not is_loaded_or_kept(name)]
    processes = min(len(os.sched_getaffinity(0)), PROCESSES_MAX) - 1
    if len(lacking) < _KERNELS_MIN or _processes:
        return 0
    for number in range(processes):
        process = start(subprocess.DEVNULL, subprocess.DEVNULL)
        _processes.append(process)
        assert process.stdin is not None
        process.stdin.write("".join(f"{name}\n" for name in lacking[::-1][number::processes]))
        process.stdin.close()
    return processes
