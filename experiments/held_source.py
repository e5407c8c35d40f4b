"""A source for runs that must outlast what is done to them: it ends when it is told to, not when its rows do.

Only this half is loaded by the control plane; ``held_reader`` is the other one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

import weir
from weir.specs import JsonLinesSpec


@dataclass(frozen=True)
class HeldLinesSpec(JsonLinesSpec):
    """JSON lines at ``rate`` until a file ``release`` exists; then the rest of them, as fast as possible."""

    kind: ClassVar[str] = "held_json_lines_source"
    runtime: ClassVar[str] = "experiments.held_reader:HeldLinesReader"
    release: str = ""


def held(source: weir.JsonLines, release: str) -> weir.JsonLines | HeldLinesSpec:
    """The source, held until the file ``release`` exists; itself if that is empty. For ``Dataflow.source``.

    Raises:
        GraphError: a setting of the source is wrong.
    """
    if not release:
        return source
    spec = source.to_spec()
    return HeldLinesSpec(**{field.name: getattr(spec, field.name) for field in fields(spec)}, release=release)
