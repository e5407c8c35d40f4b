"""What a step of the law is: how it is built, what plain Python says of it, and how the two are compared."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.law.cases import Case, Seen, random_case
from benchmarks.law.running import Build, told

#: A result: its columns in order, the change of a changelog, and the event time last.
Result = tuple[Any, ...]
Model = Callable[[list[list[Seen]]], list[Result]]
#: How results are compared.
#: "order": those of each key, in order. "rows": as they are, in no order. "folded": what a changelog comes to.
#: "last": of each key and window the last one. "sessions": a session takes the place of those within its bounds.
Compare = Literal["order", "rows", "folded", "last", "sessions"]


@dataclass(frozen=True)
class Step:
    """One step, or several in a row."""

    name: str
    build: Build
    model: Model
    #: With one split for each stream.
    one: Compare = "order"
    #: With several; None: event time leaves open what it says then.
    several: Compare | None = "rows"
    streams: int = 1
    #: Several splits have keys of their own, and no late rows: else it is open which of two rows came first.
    own_keys: bool = False
    #: Several splits have times of their own: else it is open which of two rows of one time came first.
    own_times: bool = False
    #: Those of their own may have late rows, too.
    late_keys: bool = False
    #: Never a late row.
    in_time: bool = False
    #: Results are of one key.
    keys: int = 1
    #: Subtasks of the step at most.
    parallelism_max: int = 4


def case_of(step: Step, seed: int, count: int) -> Case:
    """The case of a step and seed with so many rows; every second one has several splits where the step may."""
    several = step.several is not None and seed % 2 == 1
    return random_case(
        seed,
        count,
        step.streams,
        splits_max=4 if several else 1,
        in_time=step.in_time or (several and step.own_keys and not step.late_keys),
        own_keys=several and step.own_keys,
        own_times=several and step.own_times,
    )


def difference(step: Step, case: Case) -> str | None:
    """What a step says otherwise than plain Python, in short; None: nothing."""
    compare = step.one if case.is_single else step.several
    assert compare is not None

    def build(streams: list[Any], parallelism: int) -> Any:
        return step.build(streams, min(parallelism, step.parallelism_max))

    said = [
        tuple(value for name, value in row.items() if name != "_ingest_time_us") for row in told(build, case)
    ]
    found = _comparable(compare, said, step.keys)
    expected = _comparable(compare, step.model(case.seen()), step.keys)
    if found == expected:
        return None
    if isinstance(found, Counter) and isinstance(expected, Counter):
        missing, extra = list((expected - found).items())[:3], list((found - expected).items())[:3]
        return f"lacks {missing}, has {extra}"
    for key in sorted(set(found) | set(expected)):
        got, wanted = found.get(key), expected.get(key)
        if got != wanted and isinstance(got, list) and isinstance(wanted, list):
            at = next(
                (i for i, pair in enumerate(zip(got, wanted, strict=False)) if pair[0] != pair[1]),
                min(len(got), len(wanted)),
            )
            return f"key {key}, result {at} of {len(wanted)}: {got[at : at + 2]}, not {wanted[at : at + 2]}"
        if got != wanted:
            return f"key {key}: {got}, not {wanted}"
    return "?"


def _comparable(compare: Compare, results: Iterable[Result], keys: int) -> Any:
    if compare == "rows":
        return Counter(results)
    if compare == "folded":
        counted = Counter[Result]()
        for result in results:
            counted[result[:-2]] += 1 if result[-2] in ("insert", "update_after") else -1
        return Counter({row: n for row, n in counted.items() if n})
    by_key: dict[Any, list[Result]] = defaultdict(list)
    for result in results:
        by_key[result[:keys]].append(result)
    if compare == "last":
        return {key: {(r[keys], r[keys + 1]): r for r in found} for key, found in by_key.items()}
    if compare == "sessions":
        return {key: _last_sessions(found, keys) for key, found in by_key.items()}
    return dict(by_key)


def _last_sessions(results: list[Result], keys: int) -> list[Result]:
    kept: list[Result] = []
    for result in results:
        start, end = result[keys : keys + 2]
        kept = [r for r in kept if not (start <= r[keys] and r[keys + 1] <= end)] + [result]
    return sorted(kept)
