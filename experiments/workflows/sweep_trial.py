"""A sweep of due timers while commands come: how long it takes, and how long rows wait because of it."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from experiments.workflows.driver import Launch
from experiments.workflows.trial import Say, Trial

#: Beside the sweep: commands per second of so many workflows, until so long after it is due.
_BESIDE_RATE, _BESIDE_WORKFLOWS, _SWEEP_S = 2_000, 100, 5.0
#: Delay of the timers: all are due when the sweep comes.
_DUE_MS = 1


def waits(windows: Sequence[Mapping[str, int]]) -> dict[str, int | None]:
    """How long rows waited because of a sweep, in milliseconds; None: there is nothing to compare with.

    The rows of a sweep had other work beside them, too. So the longest way of a row in the windows of the sweep is
    compared with that in as many windows right before, and the difference counts, or the time for which slices had
    the step while a row was there for it, if that is more.

    Args:
        windows: of all subtasks, each with its ``window_start_ms``.
    """
    ordered = sorted(windows, key=lambda window: window["window_start_ms"])
    swept = [at for at, window in enumerate(ordered) if window["sweep_slices"]]
    # The window after the last slice has the rows that came meanwhile.
    during = ordered[swept[0] : swept[-1] + 2] if swept else []
    before = ordered[max(0, swept[0] - len(during)) : swept[0]] if swept else []
    if len(before) < len(during) or not during:
        return dict.fromkeys(("sweep_row_wait_ms_max", "row_age_ms_max", "row_age_before_ms_max"))
    age_ms, before_ms = (max(window["sweep_row_age_ms_max"] for window in each) for each in (during, before))
    held_ms = max(window["sweep_held_ms_max"] for window in during)
    return {
        "sweep_row_wait_ms_max": max(held_ms, age_ms - before_ms),
        "row_age_ms_max": age_ms,
        "row_age_before_ms_max": before_ms,
    }


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
        # Nobody asks meanwhile: each question for all windows takes some of a processor.
        sending.join()
        trial.wait_for(lambda sums: sums["timers_fired"] >= due)
        launches = (filling, beside)
        wanted = sum(each.commands for each in launches)
        sums = trial.wait_for(lambda sums: sums["messages_processed"] >= wanted)
        return {
            "timers": due,
            **waits(trial.windows()),
            "sweep_held_ms_max": sums["sweep_held_ms_max"],
            "sweep_slice_ms_max": sums["sweep_slice_ms_max"],
            "sweep_s": round(sums["sweep_took_ms_max"] / 1000, 2),
            "slices": sums["sweep_slices"],
            "slices_ms": sums["sweep_ms"],
            "pause_ms_max": sums["pause_ms_max"],
            "cpu_s": trial.cpu_s(),
            "wrong": trial.wrong(launches, sums),
        }
