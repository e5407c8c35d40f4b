"""Random chains of joins, windows, early results and functions: the same rows, the same answer, however they are run.

No plain Python says what a chain must say. Each is compared with itself: rows that come one by one to one subtask,
without a restart, say what all others must.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import weir
from benchmarks.law.cases import Case, random_case
from benchmarks.law.chain_links import LINKS
from benchmarks.law.join_steps import HOWS
from benchmarks.law.running import Build, told

#: Of streams with rows that are only added, and of changelogs.
ROWS, TABLE = "rows", "table"
_WINDOWS = (
    weir.tumbling(5_000),
    weir.tumbling(777),
    weir.sliding(4_000, 1_000),
    weir.sliding(6_000, 3_000),
    weir.cumulative(6_000, 2_000),
    weir.session(100),
    weir.session(1_500),
)
_BOUNDS: tuple[dict[str, Any], ...] = (
    {"within": (-3_000, 2_000)},
    {"within": (0, 0)},
    {"within": (1_000, 2_000)},
    {"within": (-2_000, -1_000)},
    {"window": weir.tumbling(4_000)},
    {"ttl": "2500ms"},
)
_ALL_BOUNDS: tuple[dict[str, Any], ...] = (
    {"within": "1500ms"},
    {"window": weir.tumbling(3_000)},
    {"window": weir.tumbling(3_000), "how": "left"},
)
#: Of a chain, beside the plain one.
RUNS = 2
#: Which partner of a row comes first is open, and with it when a semi join of rows tells.
_OPEN = ("semi",)


@dataclass(frozen=True)
class Link:
    """One step of a chain, or a few.

    Attributes:
        kind: name of a function of ``LINKS``.
        inputs: streams by number: those of sources come first, then those of the links before.
        settings: of the step.
        parallelism: its subtasks; None: what the case says.
    """

    kind: str
    inputs: tuple[int, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    parallelism: int | None = None


@dataclass(frozen=True)
class Chain:
    """Links over some streams of sources; the last one is looked at."""

    streams: int
    links: tuple[Link, ...]
    #: Of all streams, in order.
    forms: tuple[str, ...]
    #: No row of it may be late: timers go by the order of rows.
    in_time: bool

    def build(self, sources: list[Any], parallelism: int) -> Any:
        """See ``benchmarks.law.running.Build``."""
        made = [stream.select(f"from{number}", "k", "v") for number, stream in enumerate(sources)]
        for number, link in enumerate(self.links):
            subtasks = link.parallelism or parallelism
            given = [made[place] for place in link.inputs]
            made.append(LINKS[link.kind](f"link{number}", given, link.settings, subtasks))
        read = {place for link in self.links for place in link.inputs}
        for place, stream in enumerate(made[:-1]):
            if place not in read:
                stream.sink(f"unread{place}", weir.Blackhole())
        return made[-1].pass_through("out")


#: How often each is drawn.
_OF_ROWS = (
    ["windows"] * 3 + ["join"] * 4 + ["late side", "join all", "filter", "other key", "flat map", "map async"]
)
_TO_TABLES = ["union", "early", "early", "first", "top"]
_OF_TABLES = ["join of tables"] * 3 + ["totals", "filter of table"]


#: Rows of sources in a row of a chain: joins of joins of a stream with itself would fill any memory.
_JOINED_MAX = 6


def random_chain(rng: random.Random) -> Chain:
    """A chain of two to five links over one to three streams."""
    streams, in_time = rng.choice([1, 2, 2, 3]), rng.random() < 0.4
    links, forms, joined = list[Link](), [ROWS] * streams, [1] * streams
    links_wanted = rng.randint(2, 5)
    while len(links) < links_wanted:
        of_rows = [place for place, form in enumerate(forms) if form == ROWS]
        tables = [place for place, form in enumerate(forms) if form == TABLE]
        kinds = _OF_ROWS + _TO_TABLES + ["pauses"] * 2 * in_time + _OF_TABLES * bool(tables)
        link, form = _random_link(rng, rng.choice(kinds), of_rows, tables)
        # A row of the link is made of at most so many: there may be that power of the rows of sources.
        power = (sum if "join" in link.kind else max)(joined[place] for place in link.inputs)
        if power <= _JOINED_MAX:
            links.append(link)
            forms.append(form)
            joined.append(power)
    return Chain(streams, tuple(links), tuple(forms), in_time)


def _random_link(rng: random.Random, kind: str, of_rows: list[int], tables: list[int]) -> tuple[Link, str]:
    def pick(places: list[int]) -> int:
        # Mostly what came last.
        return rng.choice(places[-3:] if rng.random() < 0.7 else places)

    parallelism = rng.choice([None, 1, 2])
    one = (pick(of_rows),)
    match kind:
        case "windows":
            return Link(kind, one, {"window": rng.choice(_WINDOWS)}, parallelism), ROWS
        case "early":
            window = rng.choice([weir.tumbling(5_000), weir.session(1_500)])
            late = rng.choice([{}, {"allowed_lateness": "4s"}])
            return Link(kind, one, {"window": window, **late}, parallelism), TABLE
        case "join" | "late side":
            hows = [how for how in HOWS if how not in _OPEN or kind == "late side"]
            settings = {"how": rng.choice(hows), **rng.choice(_BOUNDS)}
            if kind == "late side":
                settings["output"] = rng.choice(["late_left", "late_right"])
            return Link(kind, (*one, pick(of_rows)), settings, parallelism), ROWS
        case "join all":
            inputs = (*one, pick(of_rows), pick(of_rows))
            return Link(kind, inputs, dict(rng.choice(_ALL_BOUNDS)), parallelism), ROWS
        case "join of tables":
            sides = [pick(tables), pick(tables) if rng.random() < 0.6 else one[0]]
            rng.shuffle(sides)
            return Link(kind, tuple(sides), {"how": rng.choice(HOWS)}, parallelism), TABLE
        case "union":
            others = [place for place in of_rows if place != one[0]]
            return (Link(kind, (*one, pick(others))) if others else Link("filter", one, {"divisor": 3})), ROWS
        case "filter" | "other key":
            return Link(kind, one, {"divisor": rng.choice([2, 3, 5])}), ROWS
        case "first":
            return Link(kind, one, {"keep": rng.choice(["first", "last"])}, parallelism), TABLE
        case "top":
            return Link(kind, one, {}, parallelism), TABLE
        case "totals" | "filter of table":
            return Link(kind, (pick(tables),), {"divisor": rng.choice([2, 3])}, parallelism), TABLE
        case _:
            return Link(kind, one, {}, parallelism), ROWS


# --- comparing ---


def difference(seed: int, count: int) -> str | None:
    """What a random chain says otherwise in one of :data:`RUNS` of the same rows, in short; None: nothing."""
    rng = random.Random(seed)
    chain = random_chain(rng)
    splits_max = rng.choice([1, 4])
    case = random_case(
        seed, count, chain.streams, splits_max=splits_max, in_time=chain.in_time, own_keys=False
    )
    is_table = chain.forms[-1] == TABLE
    plain = replace(case, cut=1, readers=1, parallelism=(1,) * 4, interruptions=0)
    expected = _said(chain.build, plain, is_table=is_table)
    for run in range(RUNS):
        other = _another(case, random.Random(f"{seed}, {run}"))
        found = _said(chain.build, other, is_table=is_table)
        if found != expected:
            missing, extra = list((expected - found).items())[:3], list((found - expected).items())[:3]
            how = f"cut {other.cut}, {other.readers} readers, {other.parallelism}, {other.interruptions} interruptions"
            return f"{how}: lacks {missing}, has {extra}; {chain.links}"
    return None


def _another(case: Case, rng: random.Random) -> Case:
    return replace(
        case,
        seed=case.seed + rng.choice([0, 7, 8]),
        cut=rng.choice([1, None, 7, 10**6]),
        readers=rng.randint(1, 3),
        parallelism=tuple(rng.randint(1, 3) for _ in range(4)),
        interruptions=rng.choice([0, 1, 2, 3]),
    )


def _said(build: Build, case: Case, *, is_table: bool) -> Counter[str]:
    """How often each row is there: with its time, or in the table to which changes lead."""
    counts = Counter[str]()
    for row in told(build, case):
        row.pop("_ingest_time_us", None)
        added = row.pop("_change", "insert") in ("insert", "update_after")
        if is_table:
            row.pop("_event_time_ms", None)
        counts[json.dumps(row)] += 1 if added else -1
    return Counter({row: count for row, count in counts.items() if count})
