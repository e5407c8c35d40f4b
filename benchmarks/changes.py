"""Jobs that are changed in random ways and go on from a savepoint: right from scratch, or refused untouched."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from benchmarks.changed.jobs import Settings
from benchmarks.changed.rows import CONDITIONS
from benchmarks.changed.table import CHANGES, Change
from benchmarks.changed.trying import Trials
from benchmarks.command_line import Report
from benchmarks.results import Bar, BenchmarkResult
from weir.errors import GraphError

BARS = (Bar("wrong", "at most", 0),)
#: Cases that have their savepoints in one directory.
_TOGETHER = 20
#: Changes that are made at once, at most.
_AT_ONCE = 3
_AGGREGATES: tuple[tuple[str, str], ...] = (
    *((name, "num") for name in ("sum", "min", "max", "mean", "first", "last", "count", "count_distinct")),
    *((name, "x") for name in ("sum", "min", "max", "mean", "first", "last")),
    *((name, "word") for name in ("count", "count_distinct")),
    ("count", ""),
)


def random_change(chosen: random.Random) -> tuple[str, Change]:
    """A kind of step, and some of its changes at once."""
    kind = chosen.choice(list(CHANGES))
    listed = list(CHANGES[kind])
    if kind in ("running", "window") and chosen.random() < 0.5:
        before, after = _random_aggregates(chosen)
        windows = [
            {name: change.after[name] for name in ("window", "more") if name in change.after}
            for change in listed
            if not change.refused
            and "window" in change.before
            and "results" not in change.before.get("more", {})
        ]
        window: Settings = chosen.choice(windows) if windows else {}
        made = Change("random aggregates", {**window, **before}, {**window, **after}, drops=True)
    else:
        made = chosen.choice(listed)
    for _ in range(chosen.randrange(_AT_ONCE)):
        other = chosen.choice(listed)
        # With leave to drop state, a step without its old name begins empty; aggregates need their columns.
        unfit = (made.drops and other.refused) or (other.drops and made.refused) or "columns" in other.after
        if not unfit and not {*made.before, *made.after} & {*other.before, *other.after}:
            made = Change(
                f"{made.name}, {other.name}",
                {**made.before, **other.before},
                {**made.after, **other.after},
                refused=made.refused or other.refused,
                drops=made.drops or other.drops,
            )
    return kind, made


def _random_aggregates(chosen: random.Random) -> tuple[Settings, Settings]:
    def some() -> dict[str, Any]:
        conditions = ["", "", *CONDITIONS]
        made: Mapping[str, Any] = {
            f"a{number}": (*chosen.choice(_AGGREGATES), chosen.choice(conditions))
            for number in range(chosen.randint(1, 5))
        }
        return dict(made)

    before, more = some(), some()
    kept = {name: each for name, each in before.items() if chosen.random() < 0.8}
    after = list({**kept, **{f"b{name}": each for name, each in more.items()}}.items())
    chosen.shuffle(after)
    return {"aggregates": before}, {"aggregates": dict(after)}


def run(report: Report, cases: int, first_seed: int) -> BenchmarkResult:
    """Try so many random changes; called by ``python -m benchmarks changes``."""
    refused, wrong = 0, dict[str, str]()
    for start in range(first_seed, first_seed + cases, _TOGETHER):
        chosen = random.Random(start)
        with Trials(chosen.randint(30, 120), chosen.choice(("memory", "rocksdb"))) as trials:
            for seed in range(start, min(start + _TOGETHER, first_seed + cases)):
                kind, change = random_change(random.Random(seed))
                report(f"{seed}: {kind}: {change.name}", (seed - first_seed) / cases)
                try:
                    outcome = trials.outcome(kind, change.before, change.after, drops=change.drops, seed=seed)
                except GraphError:
                    # These changes make no job together.
                    refused += 1
                    continue
                except Exception as error:
                    wrong[f"{seed}: {kind}: {change.name}"] = f"{type(error).__name__}: {error}"
                    continue
                refused += bool(outcome.refused)
                if outcome.wrong:
                    wrong[f"{seed}: {kind}: {change.name}"] = outcome.wrong
    figures = {"cases": cases, "wrong": len(wrong), "refused": refused, "wrong_cases": wrong}
    return BenchmarkResult("changes", {"first_seed": first_seed}, [figures], BARS)
