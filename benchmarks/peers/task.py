"""What a system is asked to do, and what the run gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import polars as pl

from benchmarks.peers.files import Format, Input
from benchmarks.peers.processes import Usage
from benchmarks.peers.texts import Query


@dataclass(frozen=True)
class Task:
    """One run of a query."""

    query: Query
    form: Format
    input: Input
    #: For scripts, logs, state, checkpoints and the result; made by the run.
    directory: Path
    #: Write the result, to be compared; otherwise each system drops it.
    keeps: bool = False


class RefusedError(Exception):
    """The system does not run the query; the message is its own reason, on one line."""


class System(Protocol):
    """A system that runs tasks."""

    def settings(self) -> Mapping[str, object]:
        """How it is set up, for the result's file."""

    def version(self) -> str:
        """Its version."""

    def run(self, task: Task) -> Usage:
        """Run a task to its end.

        Raises:
            RefusedError: the system has no such query.
            ClusterError: the run failed.
        """

    def rows(self, task: Task) -> pl.DataFrame:
        """The rows of the result that a run has kept, in the form of :func:`benchmarks.peers.rows.as_told`."""
