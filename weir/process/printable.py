"""Texts from data for terminals and logs: exception messages, names of files and steps.

A record or a file name can hold escape sequences, which move the cursor or change what was printed before, and line
ends, by which one line becomes two, the second one forged.
"""

from __future__ import annotations

import re

#: Control characters but line ends and tabs, and marks that change the direction of what follows.
_UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
#: Before each line of a text but its first: a line of a log begins with its time.
_INDENTED = "\n  "


def printable(text: str) -> str:
    r"""Return a text whose control characters are written as Python writes them: ``\x1b``; line ends and tabs stay."""
    return _UNFIT.sub(lambda match: repr(match[0])[1:-1], text)


def one_entry(text: str) -> str:
    """Return a printable text of which no line but the first can be taken for the first of another entry."""
    return printable(text).replace("\n", _INDENTED)
