"""Random cases of the law: the rows of each split of each stream, and how they are cut, run and interrupted."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

BOUND_MS = 2_000
#: First times, by the seed: also before 1970, and so that the rows go on after it.
_STARTS_MS = (10**9, 10**9, 10**9, -20_000, 10**9, -(10**12), 10**9)
END_MS = 10**15
#: Columns of the rows of each stream. The event time is ``at``, ``v`` numbers the rows of a stream.
SCHEMA = {"k": int, "at": int, "v": int, "to": int}
#: As ``SCHEMA`` says.
Row = dict[str, int]


@dataclass(frozen=True)
class Seen:
    """A row as the law has it, for plain Python."""

    k: int
    at: int
    v: int
    #: End of an interval of its own.
    to: int
    #: The watermark of its split as of it, which is that of all if there is one split.
    mark: int
    #: The watermark of all; with several splits it is open, and so low that nothing is complete before the end.
    all_ms: int

    @property
    def late(self) -> bool:
        """It has broken the promise of its split."""
        return self.at < self.mark


@dataclass(frozen=True)
class Case:
    """One run of one step."""

    seed: int
    #: Of each stream the rows of its splits.
    streams: list[list[list[Row]]]
    #: Rows of a piece that a split gives at once; None: random numbers.
    cut: int | None
    #: Subtasks of each source, and of the step at its start and after each savepoint.
    readers: int
    parallelism: tuple[int, ...]
    #: How often something interrupts it.
    interruptions: int

    @property
    def is_single(self) -> bool:
        """Each stream has one split, so that the order of its rows is known."""
        return all(len(splits) == 1 for splits in self.streams)

    def seen(self) -> list[list[Seen]]:
        """The rows of each stream, those of a split together and in order."""
        return [
            [row for rows in splits for row in _seen(rows, is_single=self.is_single)]
            for splits in self.streams
        ]


def _seen(rows: list[Row], *, is_single: bool) -> Iterator[Seen]:
    highest_ms = -END_MS
    for row in rows:
        highest_ms = max(highest_ms, row["at"])
        mark = highest_ms - BOUND_MS
        yield Seen(row["k"], row["at"], row["v"], row["to"], mark, mark if is_single else -END_MS)


def random_case(
    seed: int,
    count: int,
    streams: int,
    *,
    splits_max: int,
    in_time: bool,
    own_keys: bool,
    own_times: bool = False,
) -> Case:
    """A case.

    Args:
        seed: the same one gives the same case.
        count: rows of all streams.
        streams: how many there are.
        splits_max: of each stream; 1: the order of rows is known.
        in_time: no row is late.
        own_keys: the rows of a key are in one split.
        own_times: two splits of a stream have no times in common.
    """
    rng = random.Random(seed)
    step_ms = rng.choice([1, 50, 500, 1_000, 3_000, 60_000])
    keys = rng.choice([1, 3, 20])
    jitters_ms = [0, step_ms, 1_000] if in_time else [0, step_ms, 2_500, 6_000]
    jitter_ms = rng.choice(jitters_ms)
    if in_time:
        jitter_ms = min(jitter_ms, BOUND_MS // 2)
    number = 1 if splits_max == 1 else rng.randint(2, splits_max)
    made: list[list[list[Row]]] = []
    for _ in range(streams):
        share, splits = count // streams // number, list[list[Row]]()
        ahead_ms, unit_ms = 0, 1
        if streams > 1:
            # A stream may have no rows, few, or be ahead, and few times.
            share = share * rng.choice([0, 1, 2, 2, 2, 2, 2, 3]) // 2
            ahead_ms = rng.choice([0, 0, 0, 3_000])
            unit_ms = 1 if in_time else rng.choice([1, 1, 1_000])
        for split in range(number):
            own = [k for k in range(keys) if not own_keys or k % number == split] or [keys + split]
            first_ms = _STARTS_MS[seed % len(_STARTS_MS)] + ahead_ms + rng.choice([0, 0, 7_000]) * split
            splits.append([])
            for at in range(share):
                time_ms = first_ms + at * step_ms * number + rng.randint(-jitter_ms, jitter_ms)
                time_ms -= time_ms % unit_ms
                time_ms += (split - time_ms) % number if own_times else 0
                to_ms = time_ms + rng.choice([-1, 0, 1_000, 4_000])
                row = {"k": rng.choice(own), "at": time_ms, "v": split * share + at, "to": to_ms}
                splits[-1].append(row)
        made.append(splits)
    return Case(
        seed,
        made,
        rng.choice([1, None, None, 1_000_000]),
        # One split may have two readers: the one that has none must not hold time back.
        random.Random(seed).choice([1, 2]) if number == 1 else rng.randint(1, 3),
        tuple(rng.randint(1, 4) for _ in range(4)),
        rng.choice([0, 1, 3]),
    )
