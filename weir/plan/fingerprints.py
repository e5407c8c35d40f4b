"""The fingerprint of a job: by it processes see that they run the same one, and a job that was left is taken over.

Persisted in the record of a control plane and in manifests: ``"2:"`` and 32 hex digits. Those without a version are of
version 1, which was made of texts that Polars and pyarrow show, and of module paths; they are compared with what the
same job had then. ``tests/weir/test_fingerprints.py`` has golden ones; docs/design/0011-fingerprints.md says more.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

from weir.errors import GraphError
from weir.specs.arrow_form import schema_form
from weir.specs.told_form import told_form

if TYPE_CHECKING:
    from weir.plan.graph import Input, LogicalGraph, Node

_VERSION: Final = "2"
_DIGITS = 32


def fingerprint_of(graph: LogicalGraph) -> str:
    """Digest of everything that both processes must agree on: of the job as its author wrote it.

    Raises:
        GraphError: a type has no form; names the step.
    """
    return f"{_VERSION}:{_digest(graph_form(graph.written or graph))}"


def graph_form(graph: LogicalGraph) -> dict[str, Any]:
    """What the digest is of, as JSON."""
    return _document(graph, [_node_form(node) for node in graph.nodes])


def _node_form(node: Node) -> dict[str, Any]:
    try:
        return {"name": node.name, "spec": told_form(node.spec), "schema": schema_form(node.schema)}
    except GraphError as error:
        raise GraphError(f"step {node.name!r}: {error}") from error


def difference_of_fingerprint(stored: str, graph: LogicalGraph, why: str) -> str:
    """How a fingerprint that was kept is not that of this job, in words; empty: it is.

    Args:
        stored: of any version.
        graph: the job.
        why: what must have changed then, in words.
    """
    version, colon, _ = stored.rpartition(":")
    if colon and version != _VERSION:
        return (
            f"its fingerprint {stored} is of version {version}, and this Weir knows those up to {_VERSION}: it ran "
            "under a later one"
        )
    now = fingerprint_of(graph) if colon else _former_fingerprint(graph.written or graph)
    return "" if stored == now else f"its graph differs (fingerprint {stored}, now {now}): {why}"


def _former_fingerprint(graph: LogicalGraph) -> str:
    """Return the fingerprint of version 1."""
    return _digest(
        _document(
            graph,
            [
                {
                    "name": node.name,
                    "spec": node.spec.former_form(),
                    "schema": [f"{field.name}: {field.type}" for field in node.schema],
                }
                for node in graph.nodes
            ],
        )
    )


def _document(graph: LogicalGraph, nodes: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": graph.name,
        "max_parallelism": graph.max_parallelism,
        "nodes": [
            {**told, "inputs": [_input_form(item) for item in node.inputs], "parallelism": node.parallelism}
            for told, node in zip(nodes, graph.nodes, strict=True)
        ],
    }


def _input_form(item: Input) -> list[Any]:
    form = [item.producer, item.exchange.value, list(item.key_columns), item.is_boundary]
    # It came later: graphs without it keep their fingerprints.
    return [*form, item.output] if item.output else form


def _digest(document: dict[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
