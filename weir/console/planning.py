"""``weir plan``: loads a job as the control plane does, and prints what it is."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from weir.config import load_config, parse_set_flags
from weir.console.job_files import find_job
from weir.console.plan_drawing import draw
from weir.entry_point import parameter_texts
from weir.graph import physical_graph
from weir.job_loading import load_job
from weir.plan_document import plan_document

_WIDTH = 10_000


def print_plan(
    job: str, params: Sequence[str], path: Path | None, set_flags: Sequence[str], *, as_json: bool
) -> int:
    """Load the job and print it; returns the exit code.

    Raises:
        GraphError: the job cannot be found or loaded, or its graph is not valid.
        ConfigError: a setting or a flag is wrong.
    """
    found = find_job(job)
    sys.path[:0] = found.python_path({})
    config = load_config(path, os.environ, parse_set_flags(set_flags), tells_of_absence=False).config
    configured = {"input": config.file_name, "max_parallelism": config.control_plane.max_parallelism}
    graph = physical_graph(load_job(found.module, parameter_texts(params), configured).graph)
    if as_json:
        print(json.dumps(plan_document(graph), indent=2))
    else:
        # A tree is cut at the console's width; the terminal wraps longer lines itself.
        Console(highlight=False, width=_WIDTH).print(draw(graph), soft_wrap=True)
    return 0
