"""Errors of SQL texts: one line with file, line and column, and what was meant."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from polars.exceptions import PanicException
from sqlglot import exp

from weir.errors import GraphError, WeirError

#: Characters of a message, at most.
_MESSAGE_MAX = 1_000
#: What a message has in it that nobody has foreseen.
OWN_FAULT = "a fault of Weir's own; please report it"
#: Where a function has the name that the text calls it.
NAME = "name"


class SqlError(GraphError):
    """A text that cannot become a dataflow; its message begins with FILE:LINE:COLUMN.

    Called "fatal" by all callers: a text does not get better by another attempt.
    """

    names_place = True


class Unplaced(Exception):
    """An error whose place is an offset in the text; :class:`Place` makes a :class:`SqlError` of it.

    Attributes:
        message: what is wrong, without the place.
        start: offset in characters from 0 on; None: nobody knows.
    """

    def __init__(self, message: str, node: exp.Expr | int | None) -> None:
        super().__init__(message)
        self.message = message
        self.start = node if isinstance(node, int) or node is None else start_of(node)


class Place:
    """Where offsets of a text are, for messages.

    Args:
        file: what the text is called, such as ``hot.sql``.
        text: all of it.
    """

    def __init__(self, file: str, text: str) -> None:
        self.file, self._text = file, text

    def error(self, message: str, start: int | None) -> SqlError:
        """An error at an offset; the first line if the offset is not known."""
        at = min(start or 0, len(self._text))
        line = self._text.count("\n", 0, at) + 1
        column = at - (self._text.rfind("\n", 0, at) + 1) + 1
        told = " ".join(message.split())
        # A text may have names and values of any length.
        told = told if len(told) <= _MESSAGE_MAX else f"{told[:_MESSAGE_MAX]} ..."
        return SqlError(f"{self.file}:{line}:{column}: {told}")

    @contextmanager
    def telling(self, start: int | None = None) -> Iterator[None]:
        """Turn what is raised inside into a :class:`SqlError`; ``start`` is the place of what has none itself.

        Raises:
            SqlError: in place of an :class:`Unplaced` or an error of the dataflow API.
        """
        try:
            yield
        except (SqlError, OSError):
            raise
        except Unplaced as error:
            raise self.error(error.message, start if error.start is None else error.start) from error
        except RecursionError as error:
            raise self.error("expressions are nested too deeply; divide them among views", start) from error
        except WeirError as error:
            raise self.error(str(error), start) from error
        except (Exception, PanicException) as error:
            # A fault of Weir or of a library: whoever writes SQL sees a line with its place all the same.
            told = f"{type(error).__name__}: {error}"
            raise self.error(f"this cannot be read, by {OWN_FAULT} ({told})", start) from error


@contextmanager
def at(node: exp.Expr | int | None) -> Iterator[None]:
    """What the dataflow API refuses inside is told at the place of a part of the text.

    Raises:
        Unplaced: in place of an error of the dataflow API.
    """
    try:
        yield
    except SqlError:
        raise
    except WeirError as error:
        raise Unplaced(str(error), node) from error


def name_of(node: exp.Expr) -> str:
    """What the text calls a function: sqlglot has one name for those that are alike."""
    if isinstance(node, exp.Anonymous):
        return str(node.this).upper()
    if isinstance(node, exp.GroupConcat):
        return "STRING_AGG"
    known = node.meta.get(NAME) or (node.sql_name() if isinstance(node, exp.Func) else type(node).__name__)
    return str(known).upper()


def start_of(node: exp.Expr) -> int | None:
    """Offset of the first character of a part of the text that has a place; of what it is in, if it has none."""
    found = [each.meta["start"] for each in node.walk() if "start" in each.meta]
    if found:
        return int(min(found))
    parent = node.parent
    while parent is not None:
        if "start" in parent.meta:
            return int(parent.meta["start"])
        found = [each.meta["start"] for each in parent.walk() if "start" in each.meta]
        if found:
            return int(min(found))
        parent = parent.parent
    return None
