"""Where a key most likely is, for processes that load no kernels: so that its owner is asked first, and not any other.

Only the owner knows: what is wrong here costs one question more, never an answer. The bytes of keys are those of
``weir.keys.hashing``, and so is their hash; a test holds them together.
"""

from __future__ import annotations

from typing import Literal

import pyarrow as pa
import pyarrow.types as pat
import xxhash

from weir.plan.graph import LogicalGraph

KeyKind = Literal["text", "integer"]
_INTEGER_BYTES = 8
_SIGN = 1 << 63


def key_kinds(graph: LogicalGraph) -> dict[str, KeyKind]:
    """Return by step what its keys are; without steps of several key columns, and of other types."""
    nodes = {node.name: node for node in graph.nodes}
    found: dict[str, KeyKind] = {}
    for name, node in nodes.items():
        keys = node.spec.keys_of_input(0)
        if len(keys) == 1:
            given = node.inputs[0]
            schema = nodes[given.producer].schema_of(given.output)
            kind = _kind(schema, keys[0])
            if kind is not None:
                found[name] = kind
    return found


def _kind(schema: pa.Schema, column: str) -> KeyKind | None:
    if column not in schema.names:
        # Of a window it is that of the rows before they were added up.
        return None
    dtype = schema.field(column).type
    if pat.is_string(dtype) or pat.is_large_string(dtype):
        return "text"
    return "integer" if pat.is_integer(dtype) else None


def likely_group(kind: KeyKind | None, key: str, groups: int) -> int | None:
    """The key group of a key, as far as it can be told here.

    Args:
        kind: of the step's keys; None: another one.
        key: as a caller writes it.
        groups: how many key groups there are.
    """
    if kind is None:
        return None
    data = key.encode(errors="replace")
    if kind == "integer":
        try:
            value = int(key)
        except ValueError:
            return None
        data = ((value + _SIGN) % (1 << 64)).to_bytes(_INTEGER_BYTES, "big")
    return (xxhash.xxh64_intdigest(data) >> 32) * groups >> 32
