"""Polars expressions in the form in which Polars writes them, and back: to make another one of the parts of one."""

from __future__ import annotations

import io
import json
import re
import warnings
from typing import Any, TypeAlias

import polars as pl

#: An expression or a part of it in that form. It is Polars' own business and may change: be ready for a KeyError.
Tree: TypeAlias = Any

#: What reading a form of another version may raise.
NOT_UNDERSTOOD = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    RecursionError,
    pl.exceptions.PolarsError,
)
#: Numbers that are not finite have no form of their own there, and functions in Python are bytes.
_NOT_WHOLE = re.compile(r'"(Float|Float32|Float64)":null|"AnonymousFunction"')


def tree_of(expression: pl.Expr) -> Tree | None:
    """The form of an expression; None: what is made of it again may be another one.

    Raises:
        PolarsError: it has none, as functions in Python.
    """
    text = expression.meta.serialize(format="json")
    if _NOT_WHOLE.search(text):
        return None
    tree = json.loads(text)
    return tree if expression_of(tree).meta.eq(expression) else None


def expression_of(tree: Tree) -> pl.Expr:
    """The expression of a form."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pl.Expr.deserialize(io.StringIO(json.dumps(tree)), format="json")
