"""The rows of the jobs of this folder: the same ones each time, with all that is hard about event time."""

import json
import random

import weir

ROW = {"k": int, "at": weir.Nullable(int), "v": int, "to": int, "t": weir.Nullable(str)}
RULE = {"at": int, "limit": int}
BOUND = weir.bounded_out_of_orderness("2s", idle_timeout="1000h")
ODD_BOUND = weir.bounded_out_of_orderness("2s", idle_timeout="1000h", future_max=None)
#: Nothing waits for long where such a source has no rows; its rows are never late.
QUIET_BOUND = weir.bounded_out_of_orderness("2s", idle_timeout="1ms")
#: By source: the columns of its rows, and its bound.
SOURCES = {
    "left": (ROW, BOUND),
    "right": (ROW, BOUND),
    "third": (ROW, BOUND),
    "bad": (ROW, BOUND),
    "odd": (ROW, ODD_BOUND),
    "rules": (RULE, ODD_BOUND),
    "quiet": (ROW, QUIET_BOUND),
}
#: Lines that no row can be made of, or none with an event time.
BAD_LINES = [
    b'{"k": 1, "v": 2',
    b'{"k": 1, "at": 5, "to": 6}',
    b'{"k": "one", "at": 5, "v": 2, "to": 6}',
    b'{"k": 1, "at": 5, "v": 2.5, "to": 6}',
    b'{"k": 1, "at": 5, "v": 2, "to": 99999999999999999999}',
    b'{"k": 1, "at": 5, "v": 2, "to": 6, "t": "\xff"}',
    b'{"k": 1, "at": 1000000000000000, "v": 2, "to": 6}',
    b'{"k": 1, "at": 4611686018427387904, "v": 2, "to": 6}',
    b"[]",
    b"",
]


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
    past = [-(2**60), -(2**60) + 5, -1, 0, 1, -(10**14)]
    future = [10**15, 5, 10**15 + 3_000, 2**60, 10**15, 2**60 + 7, 0, 2**60 + 70_000, 2**60 + 60_000]
    return [
        {"k": number % 3, "at": at, "v": number, "to": 0 if at is None else at + 1_000, "t": None}
        for number, at in enumerate([*past, *future, None, -(2**62), 2**62])
    ]


def quiet_events():
    """Few rows, all of them after those of other sources."""
    return [
        {"k": number, "at": 10**7 + number * 900, "v": number, "to": 10**7, "t": None} for number in range(4)
    ]


def rule_rows():
    """Rules whose times hold nothing back."""
    return [{"at": 10**15, "limit": limit} for limit in (3, 5, 7)]


def write_input(directory, rows):
    """The files of all sources, of the larger ones with so many rows; returns the rows of each."""
    given = {
        "left": events(1, rows),
        "right": events(2, rows, first_ms=-18_000),
        "third": events(3, rows),
        "bad": events(4, rows),
        "odd": odd_events(),
        "rules": rule_rows(),
        "quiet": quiet_events(),
    }
    for source, found in given.items():
        lines = [json.dumps(row).encode() for row in found]
        if source == "bad":
            for number, line in enumerate(BAD_LINES):
                lines.insert(3 * number + 2, line)
        (directory / f"{source}.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    return given
