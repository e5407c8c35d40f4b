"""What the command line asks of a control plane process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weir.process.lifeline import Parent


@dataclass(frozen=True)
class StartCommand:
    """Which job to run, what it begins with, and when the process ends."""

    #: Module of the job.
    job_module: str
    #: Of the job, as text.
    parameters: Mapping[str, str]
    #: End when the job has ended, task managers too.
    exit_when_finished: bool
    #: Show the job on the terminal.
    follows: bool
    #: Start from this savepoint or retained checkpoint; "": from nothing.
    savepoint: str
    #: Steps of the savepoint that the job has not got any more lose their state.
    allow_dropped: bool
    #: Give up a job that an earlier control plane left running.
    starts_fresh: bool
    #: The ``weir run`` that started this process, and all task managers.
    parent: Parent | None
    #: Answer HTTP on any free port if the configured one is taken.
    or_any_http_port: bool
    #: The job of a control plane of the same ``weir run`` that died: it goes on as that one left it; "": none did.
    continued_job: str = ""
    #: A file for the report of the run, which is written at its end; "": none.
    report_path: str = ""
