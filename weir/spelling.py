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
    if near := did_you_mean_only(name, names):
        return near
    if not names:
        return "; there are none"
    more = ", ..." if len(names) > 20 else ""
    return f"; there are {', '.join(names[:20])}{more}"


def did_you_mean_only(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` if a known name is close, else nothing: there are too many to list."""
    near = _nearest(name, list(known))
    return f"; did you mean {near!r}?" if near else ""


def did_you_mean_file(path: str) -> str:
    """The same of a file that is not there, among those of its folder."""
    place = Path(path)
    try:
        names = [each.name for each in place.parent.iterdir()]
    except OSError:
        return ""
    near = _nearest(place.name, names)
    return f"; did you mean {str(place.with_name(near))!r}?" if near else ""


def _nearest(name: str, known: list[str]) -> str:
    """The one that is close; "": none is."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.6)), "")
