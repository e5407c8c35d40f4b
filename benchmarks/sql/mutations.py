"""Texts of SQL that something was done to: what a user sees of each must be one line with a place, or a plan."""

from __future__ import annotations

import random
import re

from weir.errors import WeirError
from weir.sql.errors import OWN_FAULT
from weir.sql.program import build_program

_WORDS = tuple(
    [
        "SELECT",
        "FROM",
        "(",
        ")",
        ",",
        "GROUP",
        "NULL",
        "'",
        "1",
        "INTERVAL",
        "OVER",
        "JOIN",
        "*",
        "AS",
        ";",
        "auctoin",
        "''",
        "-",
        "NOT",
        "WITH",
        "é",
        "\\",
        "/*",
        "ORDER",
        "[",
        "?",
        "$1",
    ]
)
_PLACE = re.compile(r"[^\n]+:\d+:\d+: [^\n]+")


def sample() -> str:
    """A text of about 200 lines: sources, views on views, joins, windows, places and sinks."""
    parts = [
        "CREATE SOURCE bid (WATERMARK FOR date_time AS date_time - INTERVAL '2' SECOND)\n"
        "    WITH (connector = 'nexmark', stream = 'bid', events = '100000');",
        "CREATE SOURCE auction (WATERMARK FOR date_time AS date_time - INTERVAL '2' SECOND)\n"
        "    WITH (connector = 'nexmark', stream = 'auction', events = '100000');",
    ]
    for number in range(14):
        parts.append(
            f"CREATE VIEW dear_{number} AS\n    SELECT auction, bidder, price * {number + 1} AS cents, date_time,\n"
            f"        CASE WHEN price > {number * 100} THEN UPPER(channel) ELSE 'none' END AS channel\n"
            f"    FROM bid\n    WHERE price > {number * 10} AND auction % {number + 2} = 0;"
        )
        parts.append(
            f"CREATE VIEW hot_{number} AS\n"
            "    SELECT auction, window_start, window_end, COUNT(*) AS n, SUM(cents) AS total\n"
            f"    FROM HOP(dear_{number}, date_time, INTERVAL '2' SECOND, INTERVAL '{2 * (number + 2)}' SECOND)\n"
            "    GROUP BY auction, window_start, window_end;"
        )
        parts.append(
            f"CREATE SINK out_{number} WITH (connector = 'blackhole') AS\n    SELECT h.auction, h.n, a.item_name\n"
            f"    FROM hot_{number} h\n    JOIN auction a ON h.auction = a.id\n    WHERE h.n > {number};"
        )
    return "\n\n".join(parts) + "\n"


def mutated(text: str, seed: int) -> str:
    """The text with one to three changes: words taken away, doubled, replaced, swapped, or characters of them."""
    chance = random.Random(seed)
    words = re.findall(r"\s+|\w+|'[^']*'|[^\w\s]", text)
    for _ in range(chance.choice((1, 1, 2, 3))):
        at = chance.randrange(len(words))
        while not words[at].strip():
            at = chance.randrange(len(words))
        kind = chance.randrange(6)
        if kind == 0:
            words[at] = ""
        elif kind == 1:
            words[at] = f"{words[at]} {words[at]}"
        elif kind == 2:
            words[at] = chance.choice(_WORDS)
        elif kind == 3:
            other = chance.randrange(len(words))
            words[at], words[other] = words[other], words[at]
        elif kind == 4:
            place = chance.randrange(len(words[at]))
            words[at] = words[at][:place] + words[at][place + 1 :]
        else:
            words = words[:at] + words[at + 1 :] if chance.random() < 0.8 else words[:at]
        words = [word for word in words if word] or [" "]
    return "".join(words)


def outcome(text: str) -> str:
    """What a text becomes: "plan", "error", or what is wrong with the error."""
    try:
        build_program("mutated.sql", text, "mutated").build()
    except WeirError as error:
        if OWN_FAULT in str(error):
            return f"a fault: {error}"
        return "error" if _PLACE.fullmatch(str(error)) else f"without a place: {error}"
    except BaseException as error:
        return f"traceback of {type(error).__name__}: {error}"
    return "plan"
