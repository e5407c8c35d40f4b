"""What a filter and the step after it both compute is computed once, by the filter, which hands it on as a column.

So is ``SELECT f(x) AS y ... WHERE y IS NOT NULL`` around an inner query: in SQL a column is its expression wherever it
is named. Pure; see ``weir.plan.stages``. The job's own graph stays as it was written, and so do its fingerprint and
what checkpoints say of conditions. A row for which such an expression fails made the filter fail before, too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import pyarrow as pa

from weir.plan.graph import Node, chains_to_producer, consumer_counts
from weir.rows.records import SYSTEM_COLUMNS
from weir.specs.row_wise import has_selector
from weir.specs.shared_parts import shared_parts
from weir.specs.stateless import FilterSpec, SelectSpec


def with_shared_parts(nodes: Sequence[Node], whole: Collection[str]) -> list[Node]:
    """Return the same nodes, filters computing for the ``select`` behind them; a rule of ``weir.plan.stages``."""
    by_name, consumers = {node.name: node for node in nodes}, consumer_counts(nodes)
    found = dict(by_name)
    for node in nodes:
        # Whatever else reads the filter's rows would see a column more.
        if isinstance(node.spec, SelectSpec) and chains_to_producer(by_name, node, consumers):
            before = by_name[node.inputs[0].producer]
            if isinstance(before.spec, FilterSpec) and before.name not in whole:
                [given] = (by_name[item.producer].schema_of(item.output) for item in before.inputs)
                found |= {each.name: each for each in _sharing(before, node, given)}
    return [found[node.name] for node in nodes]


def _sharing(filtering: Node, choosing: Node, given: pa.Schema) -> list[Node]:
    """Return a filter and the step behind it as they are to be; none: they stay as they are."""
    assert isinstance(filtering.spec, FilterSpec)
    assert isinstance(choosing.spec, SelectSpec)
    predicate, others = filtering.spec.predicate, choosing.spec.expressions
    # A selector would choose the new column, too.
    if not others or any(has_selector(each) for each in (predicate, *others)):
        return []
    texts = {field.name for field in given if not pa.types.is_primitive(field.type)}
    made = shared_parts(predicate, others, texts=texts, taken={*given.names, *SYSTEM_COLUMNS})
    if made is None:
        return []
    spec = replace(filtering.spec, shared=made.parts, over_shared=made.predicate)
    told = iter(made.others)
    columns = tuple(next(told) if not isinstance(item, str) else item for item in choosing.spec.columns)
    schema = spec.output_schema(filtering.name, (given,))
    return [
        replace(filtering, spec=spec, schema=schema),
        replace(choosing, spec=replace(choosing.spec, columns=columns)),
    ]
