"""Tools for testing jobs and operators; never imported by production code. docs/testing.md shows how.

``run`` and ``start`` run a dataflow in the test's own thread, on rows and at times that the test gives.
"""

from weir.local.result import DeadLetter, Result, Rows
from weir.rows.changes import folded
from weir.rows.records import Watermark
from weir.testing.inputs import PerSubtask
from weir.testing.job import RunningJob, Savepoint, run, start
from weir.testing.manual_clock import ManualClock

__all__ = [
    "DeadLetter",
    "ManualClock",
    "PerSubtask",
    "Result",
    "Rows",
    "RunningJob",
    "Savepoint",
    "Watermark",
    "folded",
    "run",
    "start",
]
