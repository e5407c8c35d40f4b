"""LIKE and ILIKE."""

from __future__ import annotations

import re
from collections.abc import Callable

import polars as pl
from sqlglot import exp

from weir.sql.errors import Unplaced
from weir.sql.types import Typed, computed, type_words


def like(node: exp.Expr, value_of: Callable[[exp.Expr], Typed]) -> Typed:
    """Whether a text is like a pattern.

    Raises:
        Unplaced: the pattern is no constant, or the value no text.
    """
    escape = None
    if isinstance(node, exp.Escape):
        escape, node = str(node.expression.name), node.this
        if len(escape) != 1 or not isinstance(node, (exp.Like, exp.ILike)):
            raise Unplaced("ESCAPE takes one character, after LIKE", node)
    value, pattern = value_of(node.this), value_of(node.expression)
    if not isinstance(value.dtype, (pl.String, pl.Null)):
        raise Unplaced(f"LIKE is of texts, and this is {type_words(value.dtype)}; CAST it", node)
    if pattern.literal is None or not isinstance(pattern.literal[0], str):
        raise Unplaced("the pattern of LIKE must be a constant text, such as 'a%'", node.expression)
    text, folds = pattern.literal[0], isinstance(node, exp.ILike)
    plain = text[:-1]
    if not folds and escape is None and text.endswith("%") and not re.search("[%_]", plain):
        return computed(value.expr.cast(pl.String).str.starts_with(plain), pl.Boolean())
    words = value.expr.cast(pl.String)
    # A regular expression without case has the sign of Kelvin for a k, which LOWER has not.
    words = words.str.to_lowercase() if folds else words
    regex = f"(?s)^{_regex(text, escape, node, folds=folds)}$"
    return computed(words.str.contains(regex), pl.Boolean())


def _regex(text: str, escape: str | None, node: exp.Expr, *, folds: bool) -> str:
    def quoted(character: str) -> str:
        return "".join(map(_quoted, character.lower() if folds else character))

    found, index = [], 0
    while index < len(text):
        character = text[index]
        if character == escape:
            index += 1
            if index == len(text):
                raise Unplaced("the pattern ends with its escape character", node)
            found.append(quoted(text[index]))
        else:
            found.append({"%": ".*", "_": "."}.get(character) or quoted(character))
        index += 1
    return "".join(found)


def _quoted(character: str) -> str:
    # Polars' engine takes no backslash before letters of other scripts.
    return f"\\{character}" if character in r"\.+*?()|[]{}^$#&-~" else character
