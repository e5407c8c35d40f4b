"""The job that a command names, loaded as the control plane loads it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from weir.config import load_config, parse_set_flags
from weir.console.job_files import find_job
from weir.dataflow.loading import load_job
from weir.plan.graph import LogicalGraph
from weir.process.entry_point import parameter_texts


@dataclass(frozen=True)
class GivenJob:
    """What the flags of a command say of a job."""

    #: File or module.
    job: str
    #: NAME=VALUE.
    params: Sequence[str]
    #: Of the configuration; None: config.json, if there is one.
    config: Path | None
    #: KEY=VALUE.
    set_flags: Sequence[str]

    def graph(self) -> LogicalGraph:
        """The job as it was written.

        Raises:
            GraphError: the job cannot be found or loaded, or its graph is not valid.
            ConfigError: a setting or a flag is wrong.
        """
        found = find_job(self.job)
        sys.path[:0] = found.python_path({})
        flags = parse_set_flags(self.set_flags)
        config = load_config(self.config, os.environ, flags, tells_of_absence=False).config
        configured = {"input": config.file_name, "max_parallelism": config.control_plane.max_parallelism}
        return load_job(found.module, parameter_texts([*found.parameters, *self.params]), configured).graph
