r"""Regular expressions: `\w`, `\d`, `\s`, `\b` are of ASCII, as in DuckDB and Spark; in Polars they are of Unicode."""

from __future__ import annotations

from collections.abc import Iterator

from weir.sql.errors import Unplaced

_CLASSES = {"w": "0-9A-Za-z_", "d": "0-9", "s": r"\t\n\f\r "}
#: What Polars' engine takes for a sign of its own, and others for the character.
_PLAIN = {"<": "<", ">": ">"}
#: Within brackets Polars' engine computes with sets.
_SET_SIGNS = "&~["


def of_ascii(pattern: str) -> str:
    """The pattern for Polars.

    Raises:
        Unplaced: it cannot be said there; without a place.
    """
    return "".join(_parts(pattern))


def _parts(pattern: str) -> Iterator[str]:
    index, in_class = 0, False
    while index < len(pattern):
        sign = pattern[index]
        if sign == "\\" and index + 1 < len(pattern):
            yield _escaped(pattern[index + 1], in_class=in_class)
            index += 2
        elif in_class and sign == "[" and (name := _named_class(pattern, index)):
            yield name
            index += len(name)
        elif in_class and pattern.startswith("--", index):
            raise Unplaced(f"{pattern!r}: -- in brackets differs between engines; write \\-", None)
        elif in_class:
            in_class = sign != "]"
            yield f"\\{sign}" if sign in _SET_SIGNS else sign
            index += 1
        elif sign == "[":
            # A bracket right after the first one is a character.
            begin = next(each for each in ("[^]", "[]", "[^", "[") if pattern.startswith(each, index))
            yield begin.replace("]", "\\]")
            index, in_class = index + len(begin), True
        else:
            yield sign
            index += 1


def _escaped(letter: str, *, in_class: bool) -> str:
    low = letter.lower()
    if low in _CLASSES:
        negated = "^" if letter != low else ""
        return f"[{negated}{_CLASSES[low]}]"
    if low == "b" and not in_class:
        return f"(?-u:\\{letter})"
    return _PLAIN.get(letter, f"\\{letter}")


def _named_class(pattern: str, index: int) -> str:
    """Return ``[:alpha:]``, if it begins here."""
    end = pattern.find(":]", index)
    return pattern[index : end + 2] if pattern.startswith("[:", index) and end > 0 else ""
