"""Which latency files to analyse, and what their sidecars say about them."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from weir.errors import ConfigError, InputError

#: Each file is one branch of Spark's plan and one line in each picture.
FILES_MAX = 100
LABEL_LENGTH_MAX = 120


@dataclass(frozen=True, slots=True)
class LatencyFile:
    """One latency file and the facts of its sidecar ``<stem>.json``."""

    path: Path
    #: What the legend says: the sidecar's ``label``, otherwise the stem; unique among the files of a call.
    label: str
    #: Empty without a sidecar.
    sidecar: dict[str, Any] = field(default_factory=dict)
    #: Moments to mark, ms since epoch: the sidecar's ``scale_requested_ms``, one number or a list.
    marks_ms: tuple[float, ...] = ()
    #: When the scaling was over, ms since epoch: the sidecar's ``scale_completed_ms``; None if it does not say.
    completed_ms: float | None = None
    #: What was wrong with the sidecar, in one line; None when all is well.
    warning: str | None = None


def find_latency_files(arguments: Sequence[Path]) -> list[LatencyFile]:
    """Resolve the arguments of ``plot.py``.

    A directory stands for all its ``*.txt`` files, sorted by name. Links are followed, and a file that is
    reached twice, as ``latest.txt`` and under its own name, is taken once.

    Args:
        arguments: Files and directories, as given.

    Returns:
        The files, in the order of the arguments.

    Raises:
        ConfigError: No argument, or more than ``FILES_MAX`` files.
        InputError: An argument does not exist, a directory has no ``*.txt``, or a file is empty.
    """
    if not arguments:
        raise ConfigError("give at least one latency file, or a directory of them such as zout/")
    paths: dict[Path, None] = {}
    for argument in arguments:
        paths.update(dict.fromkeys(_expand(argument)))
    if len(paths) > FILES_MAX:
        raise ConfigError(
            f"{len(paths)} latency files are too many for one picture: give at most {FILES_MAX}"
        )
    for path in paths:
        if path.stat().st_size == 0:
            raise InputError(f"{path} is empty: the job wrote no latencies, or has not finished yet")
    return _with_unique_labels([_read_sidecar(path) for path in paths])


def _expand(argument: Path) -> Iterable[Path]:
    if argument.is_dir():
        # A dangling link (latest.txt after its target was deleted) is no file.
        found = sorted(entry for entry in argument.glob("*.txt") if entry.is_file())
        if not found:
            raise InputError(f"{argument} holds no *.txt file: run a job with a latency sink first")
        return [entry.resolve() for entry in found]
    if not argument.is_file():
        # A sink of several subtasks writes one file each: latest.0.txt, latest.1.txt and so on.
        subtasks = sorted(argument.parent.glob(f"{glob.escape(argument.stem)}.[0-9]*{argument.suffix}"))
        if subtasks:
            names = " ".join(str(path) for path in subtasks[:3])
            raise InputError(f"{argument} does not exist; there is one file per subtask: give {names}")
        raise InputError(
            f"{argument} does not exist: give a latency file, or a directory of them such as zout/"
        )
    return [argument.resolve()]


def _read_sidecar(path: Path) -> LatencyFile:
    sidecar_path = path.with_suffix(".json")
    if not sidecar_path.is_file():
        return LatencyFile(path, path.stem)
    try:
        content = json.loads(sidecar_path.read_bytes())
    except (OSError, ValueError) as error:
        return LatencyFile(path, path.stem, warning=f"{sidecar_path} is not JSON and is ignored: {error}")
    if not isinstance(content, dict):
        return LatencyFile(path, path.stem, warning=f"{sidecar_path} is not a JSON object and is ignored")
    warning = None
    moments: dict[str, tuple[float, ...]] = {}
    for key in ("scale_requested_ms", "scale_completed_ms"):
        raw = content.get(key)
        listed = raw if isinstance(raw, list) else [] if raw is None else [raw]
        moments[key] = tuple(
            float(moment)
            for moment in listed
            if isinstance(moment, int | float) and not isinstance(moment, bool)
        )
        if len(moments[key]) != len(listed):
            warning = f"{sidecar_path}: {key} holds something else than epoch ms; that part is ignored"
    marks = moments["scale_requested_ms"]
    completed_ms = max(moments["scale_completed_ms"], default=None)
    if warning is None and content.get("status") == "running":
        warning = f"{path}: the run has not finished, or was killed, so its last events may be missing"
    label = content.get("label")
    # A line break would tear the legend.
    text = " ".join(label.split())[:LABEL_LENGTH_MAX] if isinstance(label, str) else ""
    return LatencyFile(path, text or path.stem, content, marks, completed_ms, warning)


def _with_unique_labels(files: list[LatencyFile]) -> list[LatencyFile]:
    """Add stem or directory where two files have the same label, so that the legend tells them apart."""
    labels = [file.label for file in files]
    result: list[LatencyFile] = []
    for index, file in enumerate(files):
        label = file.label
        if labels.count(label) > 1:
            label = f"{label} ({file.path.parent.name}/{file.path.stem})"
        if label in {done.label for done in result}:
            label = f"{label} #{index + 1}"
        result.append(replace(file, label=label))
    return result
