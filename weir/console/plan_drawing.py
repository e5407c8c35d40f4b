"""``weir plan``: the stages of a job as a tree on the terminal."""

from __future__ import annotations

from rich.markup import escape
from rich.tree import Tree

from weir.plan.document import columns_not_read
from weir.plan.graph import Edge, Exchange, Node, PhysicalGraph, Stage
from weir.plan.reading_times import sources_by_reading_time
from weir.specs.conditions import condition_text
from weir.specs.windows import LATE_STATE

_WAYS = {
    Exchange.FORWARD: "forward",
    Exchange.ROUND_ROBIN: "in turn",
    Exchange.BROADCAST: "to all",
}


def draw(graph: PhysicalGraph) -> Tree:
    """The job from its sources down. A stage with several inputs is drawn once, and named where it comes again."""
    logical = graph.logical
    steps = sum(len(stage.nodes) for stage in graph.stages)
    subtasks = sum(stage.parallelism for stage in graph.stages)
    tree = Tree(
        f"[bold]{escape(logical.name)}[/]  {steps} steps, {len(graph.stages)} stages, {subtasks} subtasks, "
        f"{logical.max_parallelism} key groups"
    )
    drawn: set[int] = set()
    for stage in graph.stages:
        if stage.is_source:
            _add(tree, graph, stage, None, drawn)
    return tree


def _add(above: Tree, graph: PhysicalGraph, stage: Stage, edge: Edge | None, drawn: set[int]) -> None:
    way = "" if edge is None else f"[cyan]{_way(edge)}[/] "
    if stage.index in drawn:
        above.add(f"{way}stage {stage.index}, see above")
        return
    drawn.add(stage.index)
    branch = above.add(f"{way}[bold]stage {stage.index}[/] x {stage.parallelism}")
    for node in stage.nodes:
        branch.add(_step(graph, node))
    for consumer in graph.stages:
        for its_edge in consumer.inputs:
            if its_edge.producer_stage == stage.index:
                _add(branch, graph, consumer, its_edge, drawn)


def _way(edge: Edge) -> str:
    output = f"[yellow]{escape(edge.output)}[/] " if edge.output else ""
    return (
        output
        + (
            f"by {escape(', '.join(edge.key_columns))}"
            if edge.exchange is Exchange.HASH
            else _WAYS[edge.exchange]
        )
        + (f" [dim](only {escape(', '.join(edge.columns))})[/]" if edge.is_narrowed and edge.columns else "")
    )


def _step(graph: PhysicalGraph, node: Node) -> str:
    columns = ", ".join(f"{column.name}: {column.type}" for column in node.schema)
    return (
        f"[green]{escape(node.name)}[/] ({escape(node.spec.kind)}{_state(node)}{_times(node)}{_warning(graph, node)})"
        + ("" if node.is_sink else f"  [dim]{escape(columns)}[/]{_left_out(node)}")
    )


def _state(node: Node) -> str:
    """Key columns of each input, and the state tables where they have names."""
    if not node.spec.state_names:
        return ""
    ways = dict.fromkeys(", ".join(keys) for keys in node.key_columns if keys)
    named = [name for name in node.spec.state_names if name not in ("", LATE_STATE)]
    names = f" {escape(', '.join(named))}" if named else ""
    return f", [magenta]keeps state{names} by {escape(' = '.join(ways))}[/]"


def _times(node: Node) -> str:
    order = "rows in the order of time" if node.orders_time else None
    told = [text for text in (order, node.spec.time_words, node.spec.event_time_words) if text]
    return "".join(f", [blue]{escape(text)}[/]" for text in told)


def _warning(graph: PhysicalGraph, node: Node) -> str:
    names = sources_by_reading_time(graph, node)
    if not names:
        return ""
    of = f"{', '.join(names)} {'has' if len(names) == 1 else 'have'}"
    return f", [yellow]by the time of reading: {escape(of)} no event time[/]"


def _left_out(node: Node) -> str:
    names = columns_not_read(node)
    text = f"  not read: {escape(', '.join(names))}" if names else ""
    condition = getattr(node.spec, "condition", None)
    return text if condition is None else f"{text}  row groups: {escape(condition_text(condition))}"
