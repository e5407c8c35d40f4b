"""Throughput on a store that has grown, of that on an empty one in the same trial; and how long a restore takes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from experiments.workflows.driver import Launch
from experiments.workflows.growth import fill, launch_and_wait, restore_ms
from experiments.workflows.trial import Say, Trial

if TYPE_CHECKING:
    from experiments.workflows.bars import BarOptions

#: Before anything is measured: the first rows load code.
_WARM_UP_TASKS = 5


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
    with tempfile.TemporaryDirectory() as place, make_trial(place, options, say) as trial:
        launch_and_wait(trial, done, replace(launch, prefix="warm", tasks=min(_WARM_UP_TASKS, launch.tasks)))
        rates, held_bytes = [], 0
        for prefix, size in (("empty", 0), ("grown", options.grown_bytes)):
            fill(trial, done, size, launch.payload, say)
            held_bytes = sum(each.workflows * each.tasks * each.payload_bytes for each in done)
            say(f"{prefix}: {launch.commands:,} commands")
            took_s = launch_and_wait(trial, done, replace(launch, prefix=prefix))
            rates.append(launch.commands / took_s)
        restored_ms = restore_ms(trial, done, launch.payload)
        sums = trial.sums()
        return {
            "ratio": round(rates[1] / rates[0], 2),
            "grown_bytes": held_bytes,
            "commands_per_second_empty": round(rates[0]),
            "commands_per_second_grown": round(rates[1]),
            "restore_first_output_ms": restored_ms,
            "wrong": trial.wrong(done, sums),
        }
