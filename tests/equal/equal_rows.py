"""The rows of the jobs of this folder: the same ones each time, with all that is hard about event time."""

import json
import random

BOUND_MS = 2_000


def events(seed, count, first_ms=-20_000, step_ms=400, keys=5):
    """Rows of one split: out of order, some later than the bound, some twice, some without a time, across 1970."""
    rng = random.Random(seed)
    rows, at = [], first_ms
    for number in range(count):
        at += rng.choice([0, step_ms, step_ms, 2 * step_ms]) + (15_000 if number % 60 == 59 else 0)
        behind_ms = rng.choice([0, 0, 0, 300, 900, 1_900, 2_500, 6_000, 20_000])
        time_ms = at - behind_ms
        time_ms -= time_ms % rng.choice([1, 1, 500])
        row = {
            "k": rng.randrange(keys),
            "at": None if number % 41 == 40 else time_ms,
            "v": number,
            "to": time_ms + rng.choice([-1, 0, 1_000, 4_000]),
            "t": rng.choice([None, "", "a", "b", "ü" * 3]),
        }
        rows.append(row)
        if number % 29 == 28:
            # The same row once more.
            rows.append(row)
    return rows


def odd_events():
    """Few rows whose times are far away in the past and in the future."""
    times = [
        -(2**60),
        -(2**60) + 5,
        -1,
        0,
        1,
        -(10**14),
        10**15,
        5,
        10**15 + 3_000,
        2**60,
        10**15,
        2**60 + 7,
        0,
    ]
    times += [2**60 + 70_000, 2**60 + 60_000, None, -(2**62), 2**62]
    return [
        {"k": number % 3, "at": at, "v": number, "to": 0 if at is None else at + 1_000, "t": None}
        for number, at in enumerate(times)
    ]


def rule_rows():
    """Rules whose times hold nothing back."""
    return [{"at": 10**15, "limit": limit} for limit in (3, 5, 7)]


def lines(rows):
    """As a file has them."""
    return "".join(json.dumps(row) + "\n" for row in rows)
