"""Runs jobs of this folder and says what came out, so that runs can be compared."""

import json
import random
from collections import Counter
from dataclasses import replace

from weir import testing

#: Rows of a second; a source is asked each 2.75 ms. Of one that is idle between its rows.
RATE, QUIET_RATE = 5_000, 500


def paced(source, lines):
    """A source that gives its rows one after the other."""
    return replace(lines, rate=QUIET_RATE if source == "quiet" else RATE)


def run_with_restarts(flow, rows, seed):
    """Run jobs with paced sources of so many rows, with checkpoints and restarts in between."""
    dice = random.Random(seed)
    with testing.start(flow, {}, watermarks="follow_rows", seed=seed) as job:
        for upto in ("committed", "complete", "prepared"):
            job.advance_time(dice.uniform(0.5, 1.0) * 1_000 * rows / RATE / 3)
            job.checkpoint(upto)
            job.advance_time(0.5)
            if upto != "committed":
                job.restart()
        return job.finish()


def said(rows, compare):
    """What rows come to: each as often as it is there; of a changelog, as often as it is left."""
    counted = Counter()
    for row in rows:
        row.pop("_ingest_time_us", None)
        count = 1
        if compare == "folded":
            row.pop("_event_time_ms", None)
            count = 1 if row.pop("_change", "insert") in ("insert", "update_after") else -1
        counted[json.dumps(list(row.values()))] += count
    return {row: count for row, count in counted.items() if count}


def said_in_one_process(result, compare):
    """What each output of a run in this process came to, and which rows were late and put aside."""
    found = {name: said(result[f"{name}_out"].to_dicts(times=True), kind) for name, kind in compare.items()}
    letters = Counter(
        (letter.step, letter.source, letter.position, letter.reason, letter.raw)
        for letter in result.dead_letters
    )
    return found | {"late rows": dict(result.late_rows), "dead letters": dict(letters)}


def differences(expected, found):
    """By output, what is otherwise: what is missing and what is there besides."""
    return {
        name: tuple(
            {item: count for item, count in some[name].items() if rest[name].get(item) != count}
            for some, rest in ((expected, found), (found, expected))
        )
        for name in expected
        if expected[name] != found[name]
    }
