"""A source for runs that must outlast what is done to them: it ends when it is told to, not when its rows do.

Who runs it may keep a part of its rows back, so that there are rows for later, however slow the machine is.
Only this half is loaded by the control plane; ``held_reader`` is the other one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
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


def keep_back(release: str | Path, share: float) -> None:
    """Let sources that are held until ``release`` give all of their rows but the last ones; again for fewer.

    Without it no row is kept back. Call it before the job starts, and then for more rows, which come at the pace of the
    source; those that are overdue come at once.

    Args:
        release: the file that ends the hold.
        share: of the rows of each source, those that are kept back; 0 to 1.
    """
    path = kept_back_path(release)
    whole = path.with_suffix(".new")
    whole.write_text(str(share))
    # A reader finds the old number or the new one.
    os.replace(whole, path)


def kept_back_path(release: str | Path) -> Path:
    """The file that says how many rows are kept back."""
    return Path(f"{release}.kept")
