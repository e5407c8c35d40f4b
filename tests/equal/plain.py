"""What plain Python says of the jobs of which that is short, by the models of ``benchmarks.law``."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.law.cases import END_MS, Seen
from benchmarks.law.join_steps import BOUNDS, HOWS, joined
from benchmarks.law.keyed_steps import deduplicated
from benchmarks.law.session_steps import Sessions
from benchmarks.law.ttl_steps import Cell, time_of
from benchmarks.law.window_steps import Windows, tumbling
from tests.equal import join_jobs

#: The bound of ``equal_rows.BOUND``.
BOUND_MS = 2_000
WINDOW = ("k", "window_start", "window_end", "n", "total", "_event_time_ms")
ROW = ("k", "at", "v", "to")
PAIR = (*ROW, "at_right", "v_right", "to_right", "_event_time_ms")
TTL_MS = 3_000


@dataclass(frozen=True)
class Plain:
    """What is compared of an output.

    Attributes:
        columns: of its rows.
        said: these columns of all of its rows, made of the rows of each source.
        of: the sources.
        folded: what a changelog comes to is compared.
    """

    columns: tuple[str, ...]
    said: Callable
    of: tuple[str, ...] = ("left",)
    folded: bool = False


def seen(rows):
    """The rows of a source as the models have them; those without a time are put aside by the source."""
    highest_ms = -END_MS
    for row in rows:
        if row["at"] is not None:
            highest_ms = max(highest_ms, row["at"])
            mark = highest_ms - BOUND_MS
            yield Seen(row["k"], row["at"], row["v"], row["to"], mark, mark)


def sliding(at):
    return [(start, start + 6_000) for start in range(at // 2_000 * 2_000 - 4_000, at + 1, 2_000)]


def cumulative(at):
    start = at // 6_000 * 6_000
    return [(start, end) for end in range(start + 2_000, start + 6_001, 2_000) if end > at]


def moved(at):
    """Windows of 5 s that begin a second later."""
    return [(start + 1_000, end + 1_000) for start, end in tumbling(at - 1_000)]


def told_by(make):
    """The results of windows that ``make`` makes."""
    return lambda rows: make().run(rows)


def missed_by(make):
    """The late rows of these windows."""

    def said(rows):
        windows = make()
        windows.run(rows)
        return [(row.k, row.at, row.v, row.to) for row in windows.late]

    return said


def top(rows):
    """The three with the highest ``to`` of each key; of equal ones those that came first."""
    by_key = {}
    for row in sorted(rows, key=lambda row: -row.to):
        by_key.setdefault(row.k, []).append((row.k, row.at, row.v, row.to))
    return [row for found in by_key.values() for row in found[:3]]


def last(rows):
    """The last row of each key by event time; of equal ones the one that came last."""
    return {row.k: (row.k, row.at, row.v, row.to) for row in sorted(rows, key=lambda row: row.at)}.values()


def first(rows):
    """The first row of each key and ``to``."""
    return {(row.k, row.to): (row.k, row.at, row.v, row.to) for row in reversed(rows)}.values()


def running(rows):
    counts, totals = Counter(), Counter()
    for row in rows:
        counts[row.k] += 1
        totals[row.k] += row.v
        yield row.k, counts[row.k], totals[row.k], row.at


def expiring(rows):
    """A count of each key that is forgotten 3 s after its last row."""
    counts = Cell(TTL_MS)
    for row in rows:
        n = counts.get(row.k, time_of(row), 0) + 1
        counts.put(row.k, time_of(row), n)
        yield row.k, n, row.v


def late(side):
    """The late rows of one of two sources."""
    return lambda *sources: [(row.k, row.at, row.v, row.to) for row in sources[side] if row.late]


def columns_of(how):
    """Those of a join; the time of a row of a semi join is open."""
    return ROW if how == "semi" else (*ROW, "_event_time_ms") if how == "anti" else PAIR


def pairs(bounds, how):
    """What a join says of two sources, in the columns of its kind."""
    model, columns = joined(bounds, how), len(columns_of(how))
    return lambda *sources: [row[:columns] for row in model(list(sources))]


WINDOWS = {
    "tumbling": lambda: Windows(tumbling),
    "tumbling_offset": lambda: Windows(moved),
    "sliding": lambda: Windows(sliding),
    "cumulative": lambda: Windows(cumulative),
    "session": Sessions,
    "lateness": lambda: Windows(tumbling, lateness_ms=4_000),
    "lateness_session": lambda: Sessions(lateness_ms=4_000),
}
BOTH = ("left", "right")
JOINS = [(bounds, how) for bounds in BOUNDS if bounds.name in join_jobs.BOUNDS for how in HOWS]
#: By output.
PLAIN = {
    **{name: Plain(WINDOW, told_by(make)) for name, make in WINDOWS.items()},
    **{f"{name}_side_late": Plain(ROW, missed_by(make)) for name, make in WINDOWS.items()},
    **{
        f"join_{bounds.name}_{how}": Plain(columns_of(how), pairs(bounds, how), BOTH) for bounds, how in JOINS
    },
    **{
        f"join_{bounds.name}_{how}_side_late_{side}": Plain(ROW, late(BOTH.index(side)), BOTH)
        for bounds, how in JOINS
        for side in BOTH
    },
    "top": Plain(ROW, top, folded=True),
    "deduplicate_last": Plain(ROW, last, folded=True),
    "deduplicate_first": Plain(ROW, first),
    "deduplicate_within": Plain(
        (*ROW, "_event_time_ms"),
        lambda rows: [(row.k, row.at, row.v, row.to, row.at) for row in deduplicated(rows)],
    ),
    "running": Plain(("k", "n", "total", "_event_time_ms"), running),
    "process_counting": Plain(("k", "n", "at_ms"), expiring),
}


def otherwise(output, rows, sources):
    """What an output says otherwise than plain Python: what is missing and what is there besides; None: nothing.

    Args:
        output: its name.
        rows: what it said, with event times.
        sources: the rows of each source.
    """
    plain = PLAIN[output]
    found, folded = Counter(), plain.folded
    for row in rows:
        is_taken_back = folded and row["_change"] in ("delete", "update_before")
        found[tuple(row[column] for column in plain.columns)] += -1 if is_taken_back else 1
    expected = Counter(plain.said(*(list(seen(sources[name])) for name in plain.of)))
    missing, extra = (
        [row for row in some if some[row] != rest[row]]
        for some, rest in ((expected, found), (found, expected))
    )
    return (missing[:3], extra[:3]) if missing or extra else None
