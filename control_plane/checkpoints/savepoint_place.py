"""Where a savepoint may go: a place of its own, not among a sink's output, other checkpoints or somebody's files."""

from __future__ import annotations

import os
from pathlib import Path

from weir.plan.graph import LogicalGraph


def refused_place(path: str, graph: LogicalGraph, checkpoint_uri: str) -> str:
    """Why a savepoint cannot go to ``path``, one line; empty if it can. Looks at the local file system.

    Args:
        path: a path, or a URI that ``pyarrow.fs`` understands.
        graph: of the job: its sinks' directories are taken.
        checkpoint_uri: ``controlPlane.checkpoint_uri``.
    """
    mend = "name a directory of its own"
    if _is_within(path, checkpoint_uri):
        return f"savepoint {path} would be in the checkpoint store {checkpoint_uri}; {mend}"
    for node in graph.nodes:
        output = getattr(node.spec, "path", None) or getattr(node.spec, "directory", None)
        if node.is_sink and isinstance(output, str) and _is_within(path, output):
            return f"savepoint {path} would be in {output}, where sink {node.name} writes; {mend}"
    local = _local(path)
    if local is None:
        return ""
    try:
        if local.is_dir() and any(local.iterdir()):
            return f"directory {path} is not empty; {mend}, new or empty"
        if local.exists() and not local.is_dir():
            return f"{path} is no directory; {mend}"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}; {mend}"
    return ""


def _is_within(path: str, place: str) -> bool:
    inner, outer = _local(path), _local(place)
    if inner is None or outer is None:
        return inner is outer is None and _bare(path).startswith(_bare(place))
    return inner == outer or outer in inner.parents


def _local(path: str) -> Path | None:
    """The path with every link followed; None: it is a URI of something else."""
    bare = path.removeprefix("file://")
    return None if "://" in bare else Path(os.path.realpath(bare))


def _bare(uri: str) -> str:
    """A URI without its options, with a slash at its end."""
    return uri.partition("?")[0].rstrip("/") + "/"
