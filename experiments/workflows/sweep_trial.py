"""A sweep of due timers while commands come: how long it takes, and how long rows wait because of it."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from experiments.workflows.driver import Launch
from experiments.workflows.trial import Say, Trial

#: Beside the sweep: commands per second of so many workflows, until so long after it is due.
_BESIDE_RATE, _BESIDE_WORKFLOWS, _SWEEP_S = 2_000, 100, 5.0
#: Delay of the timers: all are due when the sweep comes.
_DUE_MS = 1


def measure_sweep(
    launch: Launch,
    timers: int,
    sweep_after_ms: int,
    make_trial: Callable[[str, Mapping[str, object]], Trial],
    say: Say,
) -> dict[str, Any]:
    """Launch so many tasks, and commands at a low rate while their timers are swept.

    Args:
        launch: with the number of workflows.
        timers: due at the sweep.
        sweep_after_ms: from the first timer to the sweep.
        make_trial: makes the trial in a directory, with parameters of the job.
        say: told of progress.

    Raises:
        WeirError: a process ended, or commands were not written or processed.
    """
    filling = replace(launch, tasks=-(-timers // launch.workflows), payload_bytes=32)
    due = filling.workflows * filling.tasks
    parameters = {"timers": "sweep", "timer_delay_ms": _DUE_MS, "sweep_every_ms": sweep_after_ms}
    with tempfile.TemporaryDirectory() as place, make_trial(place, parameters) as trial:
        say(f"sweep: {due:,} timers")
        began_s = time.monotonic()
        trial.launch(filling)
        trial.wait_for(lambda sums: sums["messages_processed"] >= filling.commands)
        # Commands that come while the sweep is under way.
        left_s = max(0.0, sweep_after_ms / 1000 - (time.monotonic() - began_s)) + _SWEEP_S
        tasks = round(_BESIDE_RATE * left_s / (2 * _BESIDE_WORKFLOWS))
        beside = Launch(_BESIDE_WORKFLOWS, 32, tasks, rate=_BESIDE_RATE)
        sending = threading.Thread(target=trial.launch, args=(beside,), name="beside", daemon=True)
        sending.start()
        trial.wait_for(lambda sums: sums["timers_fired"] > 0)
        first_s = time.monotonic()
        trial.wait_for(lambda sums: sums["timers_fired"] >= due)
        sweep_s = time.monotonic() - first_s
        sending.join()
        launches = (filling, beside)
        wanted = sum(each.commands for each in launches)
        sums = trial.wait_for(lambda sums: sums["messages_processed"] >= wanted)
        return {
            "timers": due,
            "sweep_row_wait_ms_max": sums["sweep_row_wait_ms_max"],
            "sweep_held_ms_max": sums["sweep_held_ms_max"],
            "sweep_slice_ms_max": sums["sweep_slice_ms_max"],
            "sweep_s": round(sweep_s, 2),
            "slices": sums["sweep_slices"],
            "slices_ms": sums["sweep_ms"],
            "pause_ms_max": sums["pause_ms_max"],
            "cpu_s": trial.cpu_s(),
            "wrong": trial.wrong(launches, sums),
        }
