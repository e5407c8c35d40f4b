"""Where rows are added up, or left out, before they are sent: a step that the planner puts before windows' exchange.

Pure; called where a graph gets its stages. The job's own graph, and so its fingerprint, says nothing of these steps:
they keep no state. One is only put where results are the same to the last bit, and rows that came late are counted and
dropped. It joins the stage of the step before it, and lets rows pass where it would not save many of them.

Windows whose function needs the first rows of an order only (``weir.specs.row_order.FirstRows``, as ROW_NUMBER in SQL
does) have a step that leaves out rows which enough others of their batch, key and pane are before.

Windows over all keys (``window_all``) have such a step in the job's own graph. It lets all rows pass as they are, with
all of their columns, if somebody reads those that are late.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from weir.plan.graph import Exchange, Input, Node, consumer_counts
from weir.rows.side_outputs import output_id
from weir.specs.aggregate_functions import adds_up
from weir.specs.row_order import FirstRows
from weir.specs.window_parts import WindowPartSpec, WindowRowsPartSpec
from weir.specs.window_process import WindowProcessSpec
from weir.specs.window_updates import WindowUpdates
from weir.specs.windows import WINDOW_PART, WindowAggregateSpec

#: Batches with fewer rows pass as they are: to look at their keys costs more than to send them.
ROWS_MIN = 512


def with_parts(nodes: Sequence[Node], whole: Collection[str]) -> list[Node]:
    """Return the same nodes, and before windows those that send fewer rows, each called as its windows with ``.part``.

    A rule of ``weir.plan.stages``, which looks at no columns.
    """
    by_name, consumers = {node.name: node for node in nodes}, consumer_counts(nodes)
    found: list[Node] = []
    for node in nodes:
        spec = node.spec
        if not isinstance(spec, WindowAggregateSpec):
            found.append(node)
            continue
        name = f"{node.name}.part"
        sides_are_read = any(output_id(node.name, side.name) in consumers for side in node.side_outputs)
        if sides_are_read and spec.is_keyless:
            found[:] = _without_adding_up(found, node, spec)
            continue
        part = None if name in by_name or sides_are_read else _part_of(spec)
        (item,) = node.inputs
        producer = by_name[item.producer]
        # Else the step would be a stage of its own, to which rows are sent first.
        is_chained = not item.output and consumers[item.output_id] == 1
        if part is None or item.exchange is not Exchange.HASH or not is_chained:
            found.append(node)
            continue
        schema = part.output_schema(name, (producer.schema,))
        found.append(Node(name, part, (Input(item.producer),), producer.parallelism, schema))
        node = replace(node, inputs=(replace(item, producer=name),))
        if isinstance(part, WindowPartSpec):
            taking = replace(spec, takes_parts=True)
            node = replace(node, spec=taking, side_outputs=taking.sides(node.name, (schema,)))
        found.append(node)
    return found


def with_all_rows(nodes: Sequence[Node]) -> list[Node]:
    """Return the same nodes; windows over all keys whose side outputs are read get all rows as they came.

    For runners that put no such steps before others: ``weir.spark``.
    """
    consumers, found = consumer_counts(nodes), list[Node]()
    for node in nodes:
        spec = node.spec
        is_read = any(output_id(node.name, side.name) in consumers for side in node.side_outputs)
        if is_read and isinstance(spec, WindowAggregateSpec) and spec.is_keyless:
            found = _without_adding_up(found, node, spec)
        else:
            found.append(node)
    return found


def _without_adding_up(before: Sequence[Node], node: Node, spec: WindowAggregateSpec) -> list[Node]:
    """Return all steps up to windows over all keys, of which the step before them lets all rows pass."""
    (item,) = node.inputs
    if not spec.takes_parts:
        return [*before, node]
    assert spec.late_schema is not None
    nodes = []
    for part in before:
        if part.name != item.producer:
            nodes.append(part)
            continue
        assert isinstance(part.spec, WindowPartSpec)
        passing = replace(part.spec, input_schema=spec.late_schema, passes_rows=True)
        schema = passing.output_schema(part.name, (spec.late_schema,))
        nodes.append(replace(part, spec=passing, schema=schema))
    return [*nodes, replace(node, spec=replace(spec, input_schema=schema, takes_parts=False))]


def _part_of(spec: WindowAggregateSpec) -> WindowPartSpec | WindowRowsPartSpec | None:
    """The step before windows that sends fewer rows, after which their results are the same; None: there is none."""
    # Of sessions rows are added up only if they have the same time; and what rows are there says where they end.
    if spec.window.kind not in ("tumbling", "sliding", "cumulative") or spec.updates != WindowUpdates():
        return None
    if isinstance(spec, WindowProcessSpec):
        needed = getattr(spec.factory, "first_rows", None)
        if not isinstance(needed, FirstRows) or spec.is_keyless or spec.window.time != "event":
            return None
        return WindowRowsPartSpec(spec.key_columns, spec.window, needed.order, needed.rows, ROWS_MIN)
    if not _is_exact(spec):
        return None
    return WindowPartSpec(
        *(spec.key_columns, spec.window, spec.aggregates, spec.input_schema, ROWS_MIN),
        own_cells_at=spec.own_cells_at,
    )


def _is_exact(spec: WindowAggregateSpec) -> bool:
    """Return whether the results of a step are the same if rows of a key and pane come added up."""
    # Windows whose rows code gets are a kind of their own.
    if type(spec) is not WindowAggregateSpec or spec.takes_parts or not spec.adds_up:
        return False
    return WINDOW_PART not in spec.input_schema.names and all(
        adds_up(aggregate, spec.input_schema) for aggregate in spec.aggregates
    )
