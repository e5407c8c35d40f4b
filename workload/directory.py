"""The output directory of a workload: written beside its place, moved there when complete, never mixed.

A directory counts as ours when it holds the marker ``_workload.json`` and nothing else but part files. Only
such a directory is ever replaced. While a run writes, its files are in a hidden sibling
``.NAME.partial-PID``; what a killed run leaves there is removed by the next run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from weir.errors import InputError

MARKER_NAME = "_workload.json"
MARKER_FORMAT = "weir-workload/1"
_PARTIAL_MARKER_NAME = "_partial.json"
_PART_NAME = re.compile(r"part-\d{5,}\.(jsonl|parquet)")


def read_marker(directory: Path) -> Mapping[str, Any] | None:
    """Return the content of a workload's marker; None when it is missing, damaged or not ours."""
    try:
        marker = json.loads((directory / MARKER_NAME).read_bytes())
    except (OSError, ValueError):
        return None
    return marker if isinstance(marker, dict) and marker.get("format") == MARKER_FORMAT else None


def check_target(target: Path, *, overwrite: bool) -> None:
    """Check that a workload may be written to ``target``; called before anything slow starts.

    Args:
        target: The directory; need not exist, may be empty.
        overwrite: Whether an earlier workload there may be replaced.

    Raises:
        InputError: It is a file, an earlier workload without ``overwrite``, or holds files that are not ours.
    """
    if not target.exists():
        if not os.access(_nearest_existing(target.parent), os.W_OK):
            raise InputError(f"--out {target}: {_nearest_existing(target.parent)} is not writable")
        return
    if not target.is_dir():
        raise InputError(f"--out {target} is a file: give a directory that is empty or does not exist yet")
    names = sorted(entry.name for entry in target.iterdir())
    if not names:
        return
    if read_marker(target) is None:
        raise InputError(
            f"--out {target} holds {names[0]} and no {MARKER_NAME} of ours, so it is left alone:"
            " give another directory, or empty it yourself"
        )
    foreign = [name for name in names if name != MARKER_NAME and not _PART_NAME.fullmatch(name)]
    if foreign:
        raise InputError(
            f"--out {target} holds {foreign[0]}, which no workload has, so it is left alone:"
            " move that file away or give another directory"
        )
    if not overwrite:
        raise InputError(f"--out {target} holds a workload already: add --overwrite to replace it")


@contextmanager
def staging_directory(target: Path) -> Iterator[Path]:
    """Make the hidden sibling that a run writes to; it is gone at the end of the block, whatever happens.

    Args:
        target: The final directory. Its parent is made when missing.

    Yields:
        An existing directory on the same file system as ``target``.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(target)
    staging = target.parent / f".{target.name}.partial-{os.getpid()}"
    staging.mkdir()
    (staging / _PARTIAL_MARKER_NAME).write_text(json.dumps({"format": MARKER_FORMAT, "pid": os.getpid()}))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def publish(
    parts: list[Path], marker: Mapping[str, Any], staging: Path, target: Path, *, overwrite: bool
) -> None:
    """Give the part files their names, add the marker, and put the directory in its place by renaming.

    Args:
        parts: What Spark wrote below ``staging``, in row order, with the suffix of the format.
        marker: Parameters and facts.
        staging: As yielded by ``staging_directory``.
        target: The final directory; checked again, since the run took a while.
        overwrite: Whether an earlier workload may be replaced.

    Raises:
        InputError: ``target`` was filled in the meantime, or cannot be replaced.
    """
    complete = staging / "complete"
    complete.mkdir()
    for index, part in enumerate(parts):
        part.rename(complete / f"part-{index:05d}{part.suffix}")
    text = json.dumps({"format": MARKER_FORMAT, **marker}, indent=2) + "\n"
    (complete / MARKER_NAME).write_text(text, encoding="utf-8")
    check_target(target, overwrite=overwrite)
    earlier = staging / "earlier"
    try:
        if target.exists():
            target.rename(earlier)
        try:
            complete.rename(target)
        except OSError:
            if earlier.exists():
                earlier.rename(target)
            raise
    except OSError as error:
        raise InputError(f"--out {target} cannot be put in place: {error.strerror}") from error


def _nearest_existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _remove_leftovers(target: Path) -> None:
    """Remove what killed runs left for this target: directories with our marker whose process is gone."""
    pattern = re.compile(re.escape(f".{target.name}.partial-") + r"(\d+)")
    for entry in target.parent.iterdir():
        found = pattern.fullmatch(entry.name)
        if found and (entry / _PARTIAL_MARKER_NAME).is_file() and not _is_alive(int(found[1])):
            # A run killed between the two renames leaves the earlier workload here: give it back.
            if (entry / "earlier").is_dir() and not target.exists():
                (entry / "earlier").rename(target)
            shutil.rmtree(entry, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
