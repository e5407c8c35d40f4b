"""Names in files that are those of wanted columns but for case or spaces: null for such a column would lose values."""

from __future__ import annotations

from collections.abc import Collection, Iterable


def near_name(name: str, there: Iterable[str], wanted: Collection[str]) -> str | None:
    """A name in a file that is most likely meant by a column that the file does not have; None: there is none.

    Args:
        name: of the column.
        there: the names in the file.
        wanted: the names of all columns, which are meant by nothing else.
    """
    plain = name.strip().casefold()
    return next((other for other in there if other not in wanted and other.strip().casefold() == plain), None)
