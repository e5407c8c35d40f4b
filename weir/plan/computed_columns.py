"""What the columns are computed of that steps keep in their state, where a text of SQL says both; pure.

In Python the author names columns, and other code behind a name goes on with the old state. In SQL the state is of what
the text says: with another expression it would have values of both.
"""

from __future__ import annotations

from collections.abc import Mapping

from weir.errors import CheckpointError
from weir.plan.graph import LogicalGraph, Node
from weir.plan.ways_back import before_keys, steps_before
from weir.protocol.checkpoints.manifest import Computed, Manifest


def computed_of(graph: LogicalGraph) -> dict[str, Computed]:
    """Return, by keyed step, for each input the columns that come there, with the expressions on their way.

    Ways begin at steps with keys and at sources. A job without texts of SQL has none.
    """
    if not any(node.computed for node in graph.nodes):
        return {}
    by_name = {node.name: node for node in graph.nodes}
    return {
        node.name: tuple(_on_the_way(each.producer, by_name) for each in node.inputs)
        for node in graph.nodes
        if node.key_columns
    }


def _on_the_way(name: str, by_name: Mapping[str, Node]) -> dict[str, tuple[str, ...]]:
    found: dict[str, set[str]] = {}
    for node in steps_before(by_name, [name], before_keys):
        is_beginning = bool(node.key_columns) or not node.inputs
        for column in node.schema.names if is_beginning else node.computed:
            found.setdefault(column, set()).add(node.computed.get(column, column))
    return {column: tuple(sorted(texts)) for column, texts in sorted(found.items())}


def check_computed(graph: LogicalGraph, manifest: Manifest) -> None:
    """Check that what a step keeps is computed as it was.

    Columns that came or went are no question of this: other checks look at them.

    Raises:
        CheckpointError: a column is another expression.
    """
    for step, now in computed_of(graph).items():
        for before, after in zip(manifest.computed.get(step, ()), now, strict=False):
            for column in before.keys() & after.keys():
                if before[column] != after[column]:
                    then, wanted = (" and ".join(each) for each in (before[column], after[column]))
                    raise CheckpointError(
                        f"step {step!r}: column {column!r} was {then} in the checkpoint, and is {wanted} in the job: "
                        "the state would have values of both; write the expression as it was, or give the step, which "
                        "is named after its statement, another name if it may begin empty"
                    )
