"""The same rows, the same answer: steps that look at time, over random rows in random pieces."""

from __future__ import annotations

from typing import Any

from benchmarks.command_line import Report
from benchmarks.law import (
    chain_steps,
    changelog_steps,
    join_steps,
    kept_steps,
    keyed_steps,
    late_steps,
    order_steps,
    over_steps,
    random_chains,
    retained_steps,
    session_steps,
    table_join_steps,
    trigger_steps,
    ttl_steps,
    value_steps,
    version_steps,
    window_steps,
)
from benchmarks.law.steps import case_of, difference
from benchmarks.results import Bar, BenchmarkResult
from benchmarks.time_law_jobs import STEPS, Row, Step, random_rows, told

BARS = (Bar("wrong", "at most", 0),)
#: Rows of a piece that the source gives: one, random numbers, all.
CUTS = (1, None, 1_000_000)
#: Rows of a case with restarts, several splits and subtasks.
ROWS = 100
LAW = (
    *window_steps.STEPS,
    *session_steps.STEPS,
    *trigger_steps.STEPS,
    *kept_steps.STEPS,
    *join_steps.SURE,
    *table_join_steps.SURE,
    *keyed_steps.SURE,
    *ttl_steps.SURE,
    *retained_steps.SURE,
    *chain_steps.SURE,
    *late_steps.STEPS,
    *order_steps.SURE,
    *over_steps.SURE,
    *changelog_steps.SURE,
    *value_steps.STEPS,
    *version_steps.STEPS,
)


def cuts_of(step: Step) -> tuple[int | None, ...]:
    """Cuts to be tried; where plain Python does not say what a step must, it is what the step says row by row."""
    return CUTS if step.expected is not None else CUTS[1:]


def wrong_cuts(step: Step, rows: list[Row], seed: int) -> list[int | None]:
    """The cuts of these rows with which a step says something else than it must; for the benchmark and the tests."""
    expected = told(step, rows, CUTS[0], seed) if step.expected is None else sorted(step.expected(rows))
    return [cut for cut in cuts_of(step) if told(step, rows, cut, seed) != expected]


def run(report: Report, seeds: int, first_seed: int) -> BenchmarkResult:
    """Try every step over the rows of so many seeds, and in one case with restarts; called by ``time_law``."""
    cases, wrong_cases, wrong = 0, 0, dict[str, list[int]]()

    def note(name: str, seed: int) -> None:
        """Tell it at once: a run takes half an hour, and may be ended."""
        wrong.setdefault(name, []).append(seed)
        report(f"seed {seed}: {name} is WRONG", (seed - first_seed) / seeds)

    for seed in range(first_seed, first_seed + seeds):
        rows = random_rows(seed)
        for step in STEPS:
            report(f"seed {seed}: {step.name}", (seed - first_seed) / seeds)
            cases += len(cuts_of(step))
            found = wrong_cuts(step, rows, seed)
            if found:
                note(step.name, seed)
                wrong_cases += len(found)
        for law in LAW:
            report(f"seed {seed}: {law.name}, with restarts", (seed - first_seed) / seeds)
            cases += 1
            if difference(law, case_of(law, seed, ROWS)) is not None:
                note(law.name, seed)
                wrong_cases += 1
        report(f"seed {seed}: a random chain", (seed - first_seed) / seeds)
        cases += random_chains.RUNS
        if random_chains.difference(seed, ROWS) is not None:
            note("random chain", seed)
            wrong_cases += 1
    figures: dict[str, Any] = {
        "cases": cases,
        "wrong": wrong_cases,
        "wrong_seeds": {name: str(found) for name, found in wrong.items()},
    }
    return BenchmarkResult("time_law", {"seeds": seeds, "first_seed": first_seed}, [figures], BARS)
