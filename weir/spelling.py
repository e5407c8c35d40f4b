"""The nearest right spelling, for messages about names that do not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


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


def did_you_mean_only(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` if a known name is close, else nothing: there are too many to list."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def did_you_mean_file(path: str) -> str:
    """The same of a file that is not there, among those of its folder."""
    place = Path(path)
    try:
        names = [each.name for each in place.parent.iterdir()]
    except OSError:
        return ""
    near = difflib.get_close_matches(place.name, names, n=1, cutoff=0.6)
    return f"; did you mean {str(place.with_name(near[0]))!r}?" if near else ""
