"""The nearest right spelling, for messages about names that do not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` if a known name is close, else a list of the known names.

    Args:
        name: what the user wrote.
        known: the names that would have been right; long lists are cut after 20.
    """
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    if not names:
        return "; there are none"
    more = ", ..." if len(names) > 20 else ""
    return f"; there are {', '.join(names[:20])}{more}"
