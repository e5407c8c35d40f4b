"""Whose rows a job reads and writes in a database that keeps its state, and the timestamps of what it writes. Pure.

A *run* is the life of a job's state: it begins empty with the job, goes on over restarts, and over savepoints into
other jobs. All rows have the run in their partition key, so a job that begins anew finds nothing. A change is written
with a timestamp that grows with the number of the checkpoint that covers it. A job that starts from a savepoint counts
its checkpoints anew, so its timestamps have a base: that of the savepoint's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from weir.errors import CheckpointError
from weir.protocol.checkpoints.manifest import Manifest


@dataclass(frozen=True, slots=True)
class DatabaseRun:
    """A run over a database, which images of checkpoints and deployments have in the form ``name@base``."""

    name: str
    #: What is added to the number of a checkpoint.
    base: int = 0

    def __str__(self) -> str:
        """Return the form in manifests and messages."""
        return f"{self.name}@{self.base}"

    def timestamp(self, checkpoint_id: int) -> int:
        """Return the time of what a checkpoint covers; grows over restarts, and from a savepoint to the next job."""
        return self.base + checkpoint_id

    def after(self, checkpoint_id: int) -> DatabaseRun:
        """The same rows for a job that begins with this checkpoint, which is number 1 there."""
        return DatabaseRun(self.name, self.timestamp(checkpoint_id) - 1)


def parse_run(text: str) -> DatabaseRun:
    """A run from its form.

    Raises:
        CheckpointError: it has another form.
    """
    name, at, base = text.rpartition("@")
    if not name or not at or not base.isdigit():
        raise CheckpointError(f"{text!r} names no run of a database; the checkpoint is damaged")
    return DatabaseRun(name, int(base))


def run_of(job_id: str, manifest: Manifest | None) -> DatabaseRun:
    """The run of a job that starts from a checkpoint, or (None) from nothing.

    Raises:
        CheckpointError: the checkpoint is damaged.
    """
    if manifest is not None:
        names = databases_of(image.database for part in manifest.parts for image in part.images)
        if names:
            return parse_run(names[0])
    return DatabaseRun(job_id)


def databases_of(databases: Iterable[str]) -> list[str]:
    """The distinct ones; an empty one means that the image has all state itself.

    Raises:
        CheckpointError: there are several.
    """
    found = sorted({database for database in databases if database})
    if len(found) > 1:
        raise CheckpointError(f"images of one checkpoint belong to several runs ({', '.join(found)})")
    return found
