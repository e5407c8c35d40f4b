"""The aggregates of a step as its state has them: see ``weir.protocol.checkpoints.aggregate_layout``."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa

from weir.protocol.checkpoints.aggregate_layout import DROPPED, OWN_CELLS, Layout, StoredAggregate
from weir.specs.aggregate_functions import (
    AnyAggregate,
    Some,
    stored_cells,
    stored_function,
    stored_number,
)
from weir.specs.canonical import canonical_expression


def layout_of(
    aggregates: Iterable[AnyAggregate], schema: pa.Schema, own_cells_at: int | None = None
) -> Layout:
    """The layout of aggregates over columns of ``schema``; ``own_cells_at``: of a step that has cells besides them."""
    layout = [
        StoredAggregate(
            each.output,
            stored_function(each),
            each.column,
            stored_number(schema, each),
            "" if each.condition is None else canonical_expression(each.condition),
            stored_cells(schema, each),
        )
        for each in aggregates
    ]
    if own_cells_at is not None:
        layout.insert(own_cells_at, OWN_CELLS)
    return tuple(layout)


def in_layout(aggregates: tuple[Some, ...], layout: Layout, made: Callable[..., Some]) -> tuple[Some, ...]:
    """The aggregates in the order of a layout; ``made``, their class, makes what stands for those that were dropped."""
    by_name = {each.output: each for each in aggregates}
    return tuple(
        made(DROPPED, "dropped", parameters=(float(each.cells),))
        if each.output == DROPPED
        else by_name[each.output]
        for each in layout
        if each != OWN_CELLS
    )
