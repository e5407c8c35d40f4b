"""How many rows the steps of a chain have dropped because they came too late."""

from __future__ import annotations

from typing import Any

from weir.operators.chain import OperatorChain


def late_rows_of(chain: OperatorChain[Any]) -> list[tuple[str, int]]:
    """Return the name of each step that has dropped rows, and their number; also called by other threads."""
    counts = ((context.operator_name, getattr(operator, "late_rows", 0)) for operator, context in chain.steps)
    return [(step, rows) for step, rows in counts if rows]
