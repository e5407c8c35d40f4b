"""A sweep of due timers while commands come: how long it takes, and how long rows wait because of it."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from experiments.workflows.driver import Launch
from experiments.workflows.trial import Say, Trial

#: Commands per second beside the sweep: the first rate that the machine sustains, tried for so long. With fewer than
#: 800 rows are a trickle for each of two sources, which read up to 100 ms apart then.
_RATES, _TRIED_S = (2_000, 1_000), 4.0
#: Commands of so many seconds are sent at a time, to one partition after the other. The driver and the broker take a
#: third of a processor with a quarter of that, which is for the job. How long slices have the step is told by them, so
#: no row need come at the worst moment to tell.
_CHUNK_S = 0.01
#: Of how many workflows, until so long after the sweep is due.
_BESIDE_WORKFLOWS, _SWEEP_S = 100, 5.0
#: Of each of these tasks. And of the timers: all are due when the sweep comes.
_PAYLOAD_BYTES, _DUE_MS = 32, 1
#: A rate is sustained if the longest way of a row is at most this in half of the windows: sources read up to 25 ms
#: apart, and then the row goes through two steps.
_WAY_MS_MAX = 60.0
#: Where slices wait for a processor for a larger share of their time, others have the machine.
_QUEUED_MAX = 0.25


def waits(windows: Sequence[Mapping[str, int]]) -> dict[str, int | None]:
    """How long rows waited because of a sweep, in milliseconds; None: there is nothing to compare with.

    The rows of a sweep had other work beside them, too. So the longest way of a row in the windows of the sweep is
    compared with that in as many windows right before, and the difference counts, or the time for which slices had
    the step since the engine made a row, if that is more. That is what they held a row up at most: rows also wait for
    others to come with them. The longest slice counts, too, whether or not a row came when it began.

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
    held_ms = max(max(window["sweep_held_ms_max"], window["sweep_slice_ms_max"]) for window in during)
    return {
        "sweep_row_wait_ms_max": max(held_ms, age_ms - before_ms),
        "row_age_ms_max": age_ms,
        "row_age_before_ms_max": before_ms,
    }


def why_not_judged(way_ms: float, sums: Mapping[str, int]) -> str:
    """Why the figures of a sweep would tell of the machine alone; empty: they do not.

    Args:
        way_ms: the longest way of a row from the source to the step, in the middle one of the windows before the sweep.
        sums: of all windows.
    """
    queued = sums["sweep_queued_us"] / max(1, sums["sweep_us"])
    if way_ms > _WAY_MS_MAX:
        return f"rows take up to {way_ms:,.0f} ms before anything is swept: the machine sustains no rate that was tried"
    if queued > _QUEUED_MAX:
        return f"slices waited for a processor for {queued:.0%} of their time: other work has the machine"
    return ""


def measure_sweep(
    launch: Launch,
    timers: int,
    sweep_after_ms: int,
    make_trial: Callable[[str, Mapping[str, object]], Trial],
    say: Say,
) -> dict[str, Any]:
    """Launch so many tasks, and commands at a rate that the machine sustains while their timers are swept.

    Args:
        launch: with the number of workflows.
        timers: due at the sweep.
        sweep_after_ms: from the first timer to the sweep.
        make_trial: makes the trial in a directory, with parameters of the job.
        say: told of progress.

    Raises:
        WeirError: a process ended, or commands were not written or processed.
    """
    filling = replace(launch, tasks=-(-timers // launch.workflows), payload_bytes=_PAYLOAD_BYTES)
    due = filling.workflows * filling.tasks
    parameters = {"timers": "sweep", "timer_delay_ms": _DUE_MS, "sweep_every_ms": sweep_after_ms}
    with tempfile.TemporaryDirectory() as place, make_trial(place, parameters) as trial:
        say(f"sweep: {due:,} timers")
        began_s = time.monotonic()
        trial.launch(filling)
        trial.wait_for(lambda sums: sums["messages_processed"] >= filling.commands)
        rate, way_ms, launches = _sustained(trial, say)
        # Commands that come while the sweep is under way.
        left_s = max(0.0, sweep_after_ms / 1000 - (time.monotonic() - began_s)) + _SWEEP_S
        beside = _paced(rate, left_s)
        sending = threading.Thread(target=trial.launch, args=(beside,), name="beside", daemon=True)
        sending.start()
        # Nobody asks meanwhile: each question for all windows takes some of a processor.
        sending.join()
        trial.wait_for(lambda sums: sums["timers_fired"] >= due)
        launches = [filling, *launches, beside]
        wanted = sum(each.commands for each in launches)
        sums = trial.wait_for(lambda sums: sums["messages_processed"] >= wanted)
        why = why_not_judged(way_ms, sums)
        return {
            "timers": due,
            "rate": rate,
            "way_ms_before": way_ms,
            "judged": int(not why),
            **({"not_judged": why} if why else {}),
            **waits(trial.windows()),
            "sweep_held_ms_max": sums["sweep_held_ms_max"],
            "sweep_slice_ms_max": sums["sweep_slice_ms_max"],
            "sweep_s": round(sums["sweep_took_ms_max"] / 1000, 2),
            "slices": sums["sweep_slices"],
            "slices_ms": round(sums["sweep_us"] / 1000),
            "slices_processor_ms": round(sums["sweep_processor_us"] / 1000),
            "slices_queued_ms": round(sums["sweep_queued_us"] / 1000),
            "pause_ms_max": sums["pause_ms_max"],
            "cpu_s": trial.cpu_s(),
            "wrong": trial.wrong(launches, sums),
        }


def _sustained(trial: Trial, say: Say) -> tuple[int, float, list[Launch]]:
    """The first rate at which rows are quick, else the last one; how long their ways were, and what was launched."""
    rate, way_ms, launches = 0, 0.0, []
    for rate in _RATES:
        launches.append(_paced(rate, _TRIED_S))
        # The window in which it begins has rows of what was before.
        since_ms = int(time.time() * 1000)
        trial.launch(launches[-1])
        ways_ms = [
            window["sweep_row_age_ms_max"]
            for window in trial.windows()
            if window["window_start_ms"] > since_ms and window["sweep_row_age_ms_max"]
        ]
        way_ms = float(median(ways_ms)) if ways_ms else float("inf")
        say(f"sweep: at {rate:,} commands/s rows took up to {way_ms:,.0f} ms")
        if way_ms <= _WAY_MS_MAX:
            break
    return rate, way_ms, launches


def _paced(rate: int, seconds: float) -> Launch:
    tasks = max(1, round(rate * seconds / (2 * _BESIDE_WORKFLOWS)))
    return Launch(_BESIDE_WORKFLOWS, _PAYLOAD_BYTES, tasks, rate=rate, chunk_s=_CHUNK_S)
