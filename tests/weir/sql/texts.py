"""Texts of SQL for tests, and what is told of them."""

from weir.errors import GraphError
from weir.sql.program import build_program

SINK = "CREATE SINK o WITH (connector = 'blackhole') AS "


def error_of(text: str) -> str:
    """What is told of a text."""
    try:
        build_program("x.sql", text, "x").build()
    except GraphError as error:
        return str(error)
    return "nothing is said"
