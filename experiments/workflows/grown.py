"""Throughput on a store that has grown, of that on an empty one in the same trial; and how long a restore takes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.workflows.driver import Launch
from experiments.workflows.growth import check_room, fill, launch_and_wait, measure_restore
from experiments.workflows.trial import Say, Trial
from weir.errors import ConfigError

if TYPE_CHECKING:
    from experiments.workflows.bars import BarOptions

#: Before anything is measured: the first rows load code.
_WARM_UP_TASKS = 5
#: What a task manager takes beside caches: the interpreter, its libraries, and rows on their way.
_BASE_BYTES = 320 << 20
#: Bounds that do not leave so much for the caches of a task manager are refused.
_LEAST_BYTES = 64 << 20
_MEMORY_TABLES_MAX = 64 << 20


def bounded_settings(memory_bytes: int, task_managers: int) -> dict[str, object]:
    """The configuration with which all task managers together take so much memory, the page cache of state included.

    Raises:
        ConfigError: that is too little.
    """
    left = memory_bytes // task_managers - _BASE_BYTES
    if left < _LEAST_BYTES:
        least = (_BASE_BYTES + _LEAST_BYTES) * task_managers
        raise ConfigError(f"--bounded-memory: {memory_bytes >> 20}M are too little; at least {least >> 20}M")
    tables = min(_MEMORY_TABLES_MAX, left // 4)
    return {
        "taskManager.rocksdb.direct_io": True,
        "taskManager.rocksdb.block_cache_bytes": (left - tables) // 2,
        "taskManager.rocksdb.write_buffer_total_bytes": tables,
        "taskManager.rocksdb.write_buffer_bytes": tables // 4,
        "taskManager.state_cache_bytes": (left - tables) // 2,
    }


def measure_grown(
    options: BarOptions, make_trial: Callable[[str, BarOptions, Say], Trial], say: Say
) -> dict[str, Any]:
    """Measure as fast as possible, fill the store, measure again; then kill a task manager.

    Args:
        options: how large the store becomes, and what is sent.
        make_trial: makes the trial in a directory.
        say: told of progress.

    Raises:
        ClusterError: a process ended, or commands were not processed.
    """
    done: list[Launch] = []
    launch = options.launch
    temporary = Path(tempfile.gettempdir())
    check_room(temporary, options.grown_bytes, str(temporary), "--grown or --bounded-state")
    with tempfile.TemporaryDirectory() as place, make_trial(place, options, say) as trial:
        launch_and_wait(trial, done, replace(launch, prefix="warm", tasks=min(_WARM_UP_TASKS, launch.tasks)))
        rates, held_bytes = [], 0
        for prefix, size in (("empty", 0), ("grown", options.grown_bytes)):
            fill(trial, done, size, launch.payload, say)
            if size:
                # Else only a part of it is restored, and the rest is processed again.
                say("waiting for a checkpoint with all of it")
                trial.wait_for_checkpoint()
            held_bytes = sum(each.workflows * each.tasks * each.payload_bytes for each in done)
            say(f"{prefix}: {launch.commands:,} commands")
            took_s = launch_and_wait(trial, done, replace(launch, prefix=prefix))
            rates.append(launch.commands / took_s)
        trial.wait_for_standbys()
        resident_bytes = trial.peak_resident_bytes()
        restore = measure_restore(trial, done, launch.payload)
        sums = trial.sums()
        return {
            "ratio": round(rates[1] / rates[0], 2),
            "grown_bytes": held_bytes,
            "commands_per_second_empty": round(rates[0]),
            "commands_per_second_grown": round(rates[1]),
            "restore_first_output_ms": restore.first_output_ms,
            "restore_caught_up_ms": restore.caught_up_ms,
            "restore_replayed_commands": restore.replayed,
            "restore_fetched_bytes": sum(item["fetched_bytes"] for item in trial.status()["task_managers"]),
            "peak_resident_bytes": resident_bytes,
            "wrong": trial.wrong(done, sums),
        }
