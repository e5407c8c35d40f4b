"""Runs jobs of this folder and says what came out, so that runs can be compared."""

import json
from collections import Counter

import weir
from tests.equal.equal_jobs import BOUND, ODD_BOUND, RULES, SCHEMA, add_jobs
from tests.equal.equal_rows import events, lines, odd_events, rule_rows

STREAMS = ("left", "right", "third", "odd", "rules")


def write_input(directory, rows):
    """The files of all sources; ``rows``: of each of the larger ones."""
    given = {"left": events(1, rows), "right": events(2, rows, first_ms=-18_000), "third": events(3, rows)}
    for name, found in (given | {"odd": odd_events(), "rules": rule_rows()}).items():
        (directory / f"{name}.jsonl").write_text(lines(found))
    return given


def flow_of(directory, names, parallelism, sink, wrap=lambda source: source):
    """A dataflow with these jobs, and how each of its outputs is compared."""
    flow = weir.Dataflow("equal", max_parallelism=16)
    sources = {}
    for name in STREAMS:
        schema = RULES if name == "rules" else SCHEMA
        source = weir.JsonLines(f"{directory}/{name}.jsonl", schema=schema, ordered=True)
        bound = ODD_BOUND if name in ("odd", "rules") else BOUND
        sources[name] = flow.source(name, wrap(source), event_time="at", watermark=bound)
    return flow, add_jobs(flow, sources, parallelism, names, sink)


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
    letters = sorted((letter.step, letter.reason) for letter in result.dead_letters)
    return found | {"late rows": dict(result.late_rows), "dead letters": letters}


def differences(expected, found):
    """By output, what is otherwise: what is missing and what is there besides."""
    return {
        name: (
            [row for row in expected[name] if row not in found[name]][:3],
            [row for row in found[name] if row not in expected[name]][:3],
        )
        for name in expected
        if expected[name] != found[name]
    }
