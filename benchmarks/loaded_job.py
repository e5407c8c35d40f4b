"""A job that fills its state and then runs under steady load: what the benchmarks that disturb it know of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class LoadedJob:
    """A job whose parameters begin with its input; it takes ``output``, the directory of the records, too."""

    job: str
    parameters: dict[str, Any]
    #: Of its one source, from the start of the job on, events per second.
    rate: float
    #: What is disturbed, and the number of its key groups.
    stage: int
    max_parallelism: int
    #: Largest number of a key; the first one is 1.
    keys: int
    #: From the start of the job to its steady load.
    steady_s: float
    #: For the job to end, from any moment on.
    timeout_s: float
    #: What of the records (see ``record_sink``) is lost or there twice; raises BenchmarkError if anything is.
    check: Callable[[np.ndarray], dict[str, int]]
