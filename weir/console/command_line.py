"""The console command ``weir``: what it takes. Each command imports what it needs when it is called."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

import weir
from weir.console.log_commands import log_app
from weir.console.options import (
    ConfigOption,
    DroppedStateOption,
    JobArgument,
    ParamOption,
    Runner,
    RunnerOption,
    SetOption,
    StreamingOption,
)
from weir.console.run_command import RUN_EPILOG, run_command
from weir.console.security_commands import security_app
from weir.console.state_commands import SQL_EPILOG, STATE_EPILOG, sql_command, state_command
from weir.process.entry_point import run

PLAN_EPILOG = """
Examples:

\b
weir plan counts.py
weir plan my_jobs.counts --param input=events.jsonl
weir plan counts.py --json
weir plan counts.py --from-savepoint savepoints/monday
weir plan counts.py --from-running localhost:9008
"""

COMPILE_EPILOG = """
Examples:

\b
weir compile
weir compile counts.py
NUMBA_CACHE_DIR=/opt/weir-kernels weir compile my_jobs.counts
"""

STATUS_EPILOG = """
Examples:

\b
weir status
weir status localhost:9008 --json
watch -n 1 weir status
"""

REPORT_EPILOG = """
Examples:

\b
weir report
weir report localhost:9008 --out run.html
weir run counts.py --report run.html
"""

EPILOG = """
Examples:

\b
weir run counts.py --param input=events.jsonl
weir status
weir plan counts.py
weir sql -c "SELECT COUNT(*) AS n FROM 'events.jsonl'"
weir control-plane --job my_jobs.counts --exit-when-finished
weir task-manager --control-plane 10.0.0.5:8008
weir log start --brokers 3 --dir data/log
"""


app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    epilog=EPILOG,
)

app.add_typer(log_app, name="log")
app.add_typer(security_app, name="security")


@app.callback()
def main() -> None:
    """Weir: a stream processor in Python whose keyed state is disaggregated from compute."""


app.command("run", epilog=RUN_EPILOG)(run_command)


@app.command("plan", epilog=PLAN_EPILOG)
def plan_command(
    job: JobArgument,
    param: ParamOption = None,
    config: ConfigOption = None,
    set_flags: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, as GET /plan answers.")] = False,
    from_savepoint: Annotated[
        str | None,
        typer.Option(
            help="Tell instead what becomes of the state of each step if the job starts from there."
        ),
    ] = None,
    from_running: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="As --from-savepoint, of the latest checkpoint of a running job."
        ),
    ] = None,
    allow_dropped_state: DroppedStateOption = False,
    runner: RunnerOption = Runner.WEIR,
    streaming: StreamingOption = None,
) -> None:
    """Check a job and draw its stages, without running it; or tell what it makes of the state of a checkpoint."""

    def plan() -> int:
        if runner is Runner.SPARK:
            from weir.console.given_job import GivenJob
            from weir.console.spark_plans import print_spark_plan

            given = GivenJob(job, param or [], config, set_flags or [])
            return print_spark_plan(given, streaming=streaming, as_json=as_json)
        from weir.console.planning import print_plan

        return print_plan(
            job,
            param or [],
            config,
            set_flags or [],
            as_json=as_json,
            from_savepoint=from_savepoint or "",
            from_running=from_running or "",
            allow_dropped=allow_dropped_state,
        )

    run("weir plan", plan)


app.command("sql", epilog=SQL_EPILOG)(sql_command)
app.command("state", epilog=STATE_EPILOG)(state_command)


@app.command("status", epilog=STATUS_EPILOG)
def status_command(
    address: Annotated[
        str, typer.Argument(metavar="[HOST:PORT]", help="HTTP address of the control plane.")
    ] = "localhost:9008",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, as GET /status answers.")] = False,
) -> None:
    """Say in one line how a running job is: whether it keeps up, and which stage limits it; then list its stages.

    Exit code: 0 the job is there, 1 it has failed or nobody answers.
    """

    def status() -> int:
        from weir.console.job_status import print_status

        return print_status(address, as_json=as_json)

    run("weir status", status)


@app.command("report", epilog=REPORT_EPILOG)
def report_command(
    address: Annotated[
        str, typer.Argument(metavar="[HOST:PORT]", help="HTTP address of the control plane.")
    ] = "localhost:9008",
    out: Annotated[Path, typer.Option(help="The file; one that is there is replaced.")] = Path("report.html"),
) -> None:
    """Write what the page of a job shows into one HTML file, to be kept and sent to others.

    The control plane must be there still: without --exit-when-finished it stays after the end of the job, and weir run
    --report FILE writes the file at the end.
    """

    def write() -> int:
        from weir.questions.report import report

        print(f"written to {report(address, out)}")
        return 0

    run("weir report", write)


@app.command("compile", epilog=COMPILE_EPILOG)
def compile_command(
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB]", help="Compile what this job may need (default: all kernels of Weir)."
        ),
    ] = None,
    param: ParamOption = None,
    config: ConfigOption = None,
    set_flags: SetOption = None,
) -> None:
    """Compile kernels ahead, for images and CI; what is compiled already takes no time.

    They are kept in the user's cache directory, or in NUMBA_CACHE_DIR. Without this command a job compiles what it
    needs when it needs it.
    """

    def compile_ahead() -> int:
        from weir.console.compiling import compile_kernels

        return compile_kernels(job, param or [], config, set_flags or [])

    run("weir compile", compile_ahead)


@app.command("version")
def version_command() -> None:
    """Print the version."""
    print(weir.__version__)


_PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


@app.command("control-plane", context_settings=_PASSED_ON)
def control_plane_command(context: typer.Context) -> None:
    """Start a control plane, which decides. Same as python -m control_plane; --help lists its flags."""
    _become("control_plane", context.args)


@app.command("task-manager", context_settings=_PASSED_ON)
def task_manager_command(context: typer.Context) -> None:
    """Start a task manager, which executes. Same as python -m task_manager; --help lists its flags."""
    _become("task_manager", context.args)


def _become(module: str, arguments: list[str]) -> None:
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
