"""Functions of texts, as expressions; each is NULL where one of its values is."""

from __future__ import annotations

import polars as pl

from weir.sql.errors import Unplaced
from weir.sql.regexps import of_ascii

#: Up to this part a text is divided into columns, beyond it into a list.
_COLUMNS_MAX = 64
#: Into so many a text is divided at least, so that the first places of it share one expression.
_SHARED_PARTS = 7
#: More characters than a text has.
_LONGEST = 1 << 40


def substring(text: pl.Expr, start: pl.Expr, length: pl.Expr | None = None) -> pl.Expr:
    """Return what begins at the character ``start``, from 1 on; what is before the first one counts in ``length``."""
    begin = _bounded(start) - 1
    first = _positive(begin)
    if length is None:
        return where_known(text.str.slice(first), start)
    return where_known(text.str.slice(first, _positive(begin + _bounded(length) - first)), start, length)


def left(text: pl.Expr, count: pl.Expr) -> pl.Expr:
    """The first characters; none of a negative number."""
    return where_known(text.str.slice(0, _positive(count)), count)


def right(text: pl.Expr, count: pl.Expr) -> pl.Expr:
    """The last characters; none of a negative number."""
    return where_known(
        text.str.slice(_positive(text.str.len_chars().cast(pl.Int64) - _bounded(count))), count
    )


def position(text: pl.Expr, part: pl.Expr) -> pl.Expr:
    """The first character of a part, from 1 on; 0: it is not there."""
    # Polars finds bytes, and those before the part are whole characters.
    found = text.str.find(part, literal=True)
    before = text.cast(pl.Binary).bin.slice(0, found.fill_null(0)).cast(pl.String)
    place = pl.when(found.is_null()).then(0).otherwise(before.str.len_chars().cast(pl.Int64) + 1)
    return where_known(place, text, part)


def replaced(text: pl.Expr, old: pl.Expr, new: pl.Expr) -> pl.Expr:
    """The text with another part for each that is ``old``; an empty one is none."""
    if not text.meta.root_names():
        # Polars takes as many rows as the text has: one, and so the first of a column of others.
        text = pl.concat_str(text, new.fill_null("").str.slice(0, 0))
    is_known = new.meta.root_names() or pl.select(new).item() is not None
    if old.meta.is_literal() and pl.select(old).item() and is_known:
        return where_known(text.str.replace_all(old, new, literal=True), new)
    # Polars replaces one constant part only.
    parts = pl.when(old == "").then(text).otherwise(text.str.split(old).list.join(new))
    return where_known(parts, old, new)


def split_part(text: pl.Expr, delimiter: pl.Expr, place: pl.Expr) -> pl.Expr:
    """The part at a place from 1 on, or from -1 on before the end; an empty text where there is none."""
    if delimiter.meta.is_literal() and place.meta.is_literal():
        between, number = pl.select(delimiter).item(), pl.select(place).item()
        if between and number is not None and 0 < number <= _COLUMNS_MAX:
            # Not into a list of all parts; of several places of a text the same expression, which is computed once.
            parts = text.str.splitn(between, max(number + 1, _SHARED_PARTS))
            return where_known(parts.struct.field(f"field_{number - 1}").fill_null(""), text)
    index = pl.when(place > 0).then(place - 1).when(place < 0).then(place)
    parts = text.str.split(delimiter)
    if not delimiter.meta.is_literal():
        # By an empty text of a column Polars has empty parts at both ends, by a constant one it has none.
        parts = pl.when(delimiter == "").then(text.str.split("")).otherwise(parts)
    found = parts.list.get(index, null_on_oob=True)
    return where_known(found.fill_null(""), text, delimiter, place)


def extracted(text: pl.Expr, pattern: pl.Expr, group: pl.Expr | None = None) -> pl.Expr:
    """The match, or a group of it; an empty text where there is none, as in Spark and DuckDB."""
    number = 0 if group is None else int(pl.select(group).item())
    return where_known(text.str.extract(pattern, number).fill_null(""), text, pattern)


def patterns(given: pl.Expr, literal: str | None) -> pl.Expr:
    """Regular expressions for Polars; ``literal``: of a constant."""
    if literal is not None:
        return pl.lit(of_ascii(literal))
    return given.map_batches(_each_of_ascii, return_dtype=pl.String, is_elementwise=True)


def _each_of_ascii(given: pl.Series) -> pl.Series:
    # Each different one once.
    different = given.drop_nulls().unique()
    return given.replace_strict(different, [of_ascii(each) for each in different], return_dtype=pl.String)


def check_pattern(pattern: str) -> None:
    """Refuse a regular expression that cannot be read.

    Raises:
        Unplaced: it cannot; without a place.
    """
    try:
        pl.select(pl.lit("").str.contains(of_ascii(pattern)))
    except pl.exceptions.PolarsError as error:
        words = [line for line in str(error).splitlines() if line.startswith("error: ")]
        why = words[0].removeprefix("error: ") if words else "it cannot be read"
        raise Unplaced(f"{pattern!r} is no regular expression: {why}", None) from error


def where_known(value: pl.Expr, *given: pl.Expr) -> pl.Expr:
    """The value where none of what it is computed from is NULL; constants that are not NULL are no question."""
    asked = [each for each in given if not (each.meta.is_literal() and pl.select(each).item() is not None)]
    if not asked:
        return value
    known = asked[0].is_not_null()
    for each in asked[1:]:
        known = known & each.is_not_null()
    return pl.when(known).then(value)


def _bounded(count: pl.Expr) -> pl.Expr:
    """A number of characters within what a text can have, so that sums of two do not overflow."""
    return count.cast(pl.Int64).clip(-_LONGEST, _LONGEST)


def _positive(count: pl.Expr) -> pl.Expr:
    return pl.max_horizontal(count, pl.lit(0)).cast(pl.UInt64)
