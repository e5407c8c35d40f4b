"""What the Nexmark queries must reach, and what Flink reaches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.results import Bar

#: What each query must reach.
_EVENTS_PER_SECOND_MIN = {
    **dict.fromkeys(("q0", "q1", "q2", "q14", "q21", "q22"), 1_000_000),
    **dict.fromkeys(("q3", "q8"), 500_000),
    **dict.fromkeys(("q5", "q7", "q11", "q12", "q15", "q16", "q17"), 300_000),
    **dict.fromkeys(("q4", "q9", "q18", "q19"), 150_000),
    "q20": 100_000,
}
#: Events per second and core of Flink 1.13 with RocksDB, as the repository of its Nexmark publishes them; its other
#: queries have none. It counts all events of the auction, whatever a query reads of them.
FLINK_PER_CORE = {
    "q0": 155_000,
    "q1": 158_000,
    "q2": 175_000,
    "q3": 152_000,
    "q4": 34_000,
    "q5": 22_000,
    "q7": 12_300,
    "q8": 146_000,
    "q9": 14_000,
    "q11": 40_000,
    "q17": 117_000,
    "q18": 54_000,
    "q19": 44_000,
    "q20": 19_000,
}


def bars(names: Sequence[str]) -> Iterator[Bar]:
    """The bars of these queries."""
    for query in names:
        if query in _EVENTS_PER_SECOND_MIN:
            bound = _EVENTS_PER_SECOND_MIN[query]
            yield Bar(f"queries: {query}: events_per_second", "at least", bound)
        if query in FLINK_PER_CORE:
            yield Bar(f"queries: {query}: ratio_to_flink_per_core", "at least", 1)
