"""The console command ``weir``: what it takes. Each command imports what it needs when it is called."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

import weir
from weir.console.log_commands import log_app
from weir.console.options import (
    CheckpointOption,
    ConfigOption,
    DroppedStateOption,
    FollowOption,
    FreshOption,
    HttpPortOption,
    JobArgument,
    KeepDirOption,
    MasterOption,
    ParamOption,
    ReportOption,
    Runner,
    RunnerOption,
    SavepointOption,
    SetOption,
    SparkCheckpointsOption,
    SparkConfOption,
    StoreOption,
    StreamingOption,
    StrictOption,
    TableForm,
)
from weir.console.security_commands import security_app
from weir.process.entry_point import VerboseOption, run

RUN_EPILOG = """
Examples:

\b
weir run weir.examples.word_count
weir run counts.py
weir run counts.py --param input=events.jsonl --param parallelism=4
weir run hot.sql --param parallelism=2
weir run my_jobs.counts --task-managers 2
weir run counts.py --store cassandra
weir run counts.py --set taskManager.batch_size=1000 --no-follow > counts.jsonl

\b
Exit code: 0 the job finished, 1 it failed (the last line says why), 2 the job, a flag or a setting is wrong,
3 it was cancelled (Ctrl-C, SIGTERM, POST /cancel); 128 + the signal's number after a second signal.
"""

PLAN_EPILOG = """
Examples:

\b
weir plan counts.py
weir plan my_jobs.counts --param input=events.jsonl
weir plan counts.py --json
weir plan counts.py --from-savepoint savepoints/monday
weir plan counts.py --from-running localhost:9008
"""

SQL_EPILOG = """
Examples:

\b
weir sql
weir sql -c "SELECT who, COUNT(*) AS n FROM 'orders.jsonl' GROUP BY who ORDER BY n DESC LIMIT 5"
weir sql -c "SELECT * FROM 'state/totals/n' WHERE key = 'ann'" --job localhost:9008 --format json
weir sql declarations.sql -c "SELECT * FROM bids LIMIT 10" --for 2
"""

STATE_EPILOG = """
Examples:

\b
weir state savepoints/monday
weir state savepoints/monday --job counts.py seen
weir state savepoints/monday --job my_jobs.orders --param input=orders.jsonl totals/n --limit 100
weir state savepoints/tuesday --job counts.py seen --before savepoints/monday
weir state savepoints/monday --job counts.py seen --out seen.parquet
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


@app.command("run", epilog=RUN_EPILOG)
def run_command(
    job: JobArgument,
    param: ParamOption = None,
    task_managers: Annotated[int, typer.Option(min=1, max=64, help="Number of task managers.")] = 1,
    config: ConfigOption = None,
    set_flags: SetOption = None,
    store: StoreOption = None,
    follow: FollowOption = True,
    keep_dir: KeepDirOption = None,
    http_port: HttpPortOption = None,
    from_savepoint: SavepointOption = None,
    from_checkpoint: CheckpointOption = None,
    start_fresh: FreshOption = False,
    allow_dropped_state: DroppedStateOption = False,
    strict: StrictOption = False,
    report: ReportOption = None,
    verbose: VerboseOption = False,
    runner: RunnerOption = Runner.WEIR,
    master: MasterOption = "local[*]",
    streaming: StreamingOption = False,
    spark_conf: SparkConfOption = None,
    checkpoints: SparkCheckpointsOption = None,
) -> None:
    """Run a job on processes of this machine until it ends. The exit code says how it ended.

    The command starts a control plane and task managers on free ports; HTTP is on 9008 if that is free. Standard
    output has only what the job prints. The same command after a kill goes on from the latest checkpoint; after an end
    it begins the job anew.
    """

    def start_on_spark() -> int:
        from weir.console.given_job import GivenJob
        from weir.console.spark_runs import SparkOptions, run_on_spark

        given = GivenJob(job, param or [], config, set_flags or [])
        return run_on_spark(
            SparkOptions(given, master, streaming, spark_conf or [], checkpoints, keep_dir, strict=strict)
        )

    def start() -> int:
        from weir.console.job_files import find_job
        from weir.console.run_directory import RunDirectory
        from weir.console.running import RunOptions, default_directory, run_job

        found = find_job(job)
        return run_job(
            RunOptions(
                found,
                RunDirectory(keep_dir) if keep_dir is not None else default_directory(found),
                task_managers=task_managers,
                http_port=http_port,
                follow=follow,
                verbose=verbose,
                shared=_given({"--config": config})
                + _repeated("--set", None if store is None else [f"taskManager.state_backend={store.value}"])
                + _repeated("--set", set_flags),
                control_plane=_repeated("--param", [*found.parameters, *(param or ())])
                + _given(
                    {
                        "--from-savepoint": from_savepoint,
                        "--from-checkpoint": from_checkpoint,
                        "--start-fresh": start_fresh,
                        "--allow-dropped-state": allow_dropped_state,
                        "--strict": strict,
                        "--report": None if report is None else report.absolute(),
                    }
                ),
            )
        )

    run("weir run", start_on_spark if runner is Runner.SPARK else start)


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
    streaming: StreamingOption = False,
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


@app.command("sql", epilog=SQL_EPILOG)
def sql_command(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="Statements that are run first (CREATE SOURCE ...)."),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option("--command", "-c", metavar="TEXT", help="Run these statements, without a prompt."),
    ] = None,
    job: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="HTTP address of a running job whose states are tables.")
    ] = "localhost:9008",
    for_s: Annotated[
        float | None,
        typer.Option(
            "--for", metavar="SECONDS", min=0.1, help="Read sources for so long (default: to their end; 5 s)."
        ),
    ] = None,
    form: Annotated[
        TableForm, typer.Option("--format", help="How rows are written.", show_choices=True)
    ] = TableForm.TABLE,
    rows: Annotated[int, typer.Option(min=1, help="Show so many rows of a table.")] = 200,
) -> None:
    """Answer SQL queries over files, topics and the states of a running job: at a prompt, or once with -c.

    Queries run in this process and change nothing. Without a terminal the statements are read from standard input.
    """

    def answer() -> int:
        from weir.console.sql_prompt import prompt, run_text
        from weir.sql.job import text_of
        from weir.sql.session import Session

        # Functions of Python are beside the user, as those of jobs.
        sys.path.insert(0, os.getcwd())
        session = Session(job, for_s)
        if file is not None:
            run_text(session, text_of(str(file)), file.name, form.value, rows)
        if command is not None:
            return run_text(session, command, "SQL", form.value, rows)
        if not sys.stdin.isatty():
            return 0 if file is not None else run_text(session, sys.stdin.read(), "SQL", form.value, rows)
        return prompt(session, form.value, rows)

    run("weir sql", answer)


@app.command("state", epilog=STATE_EPILOG)
def state_command(
    savepoint: Annotated[
        str, typer.Argument(metavar="SAVEPOINT", help="A savepoint, the folder of a job, or one manifest.")
    ],
    state: Annotated[
        str | None, typer.Argument(metavar="[STEP[/STATE]]", help="Show the keys and values of this state.")
    ] = None,
    job: Annotated[
        str | None, typer.Option(metavar="JOB", help="The job, which says what the bytes of its states mean.")
    ] = None,
    param: ParamOption = None,
    config: ConfigOption = None,
    set_flags: SetOption = None,
    before: Annotated[
        str | None, typer.Option(metavar="SAVEPOINT", help="Show only what is not as in this earlier one.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show so many keys.")] = 20,
    out: Annotated[
        Path | None, typer.Option(help="Write all of them to this file instead: .parquet, .csv or .jsonl.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what is in the state of a job that is stopped: its steps and states, or the values of one state."""

    def show() -> int:
        from weir.console.given_job import GivenJob
        from weir.console.state_view import print_contents, print_values

        if state is None:
            return print_contents(savepoint, as_json=as_json)
        if job is None:
            raise typer.BadParameter(f"what {state} holds is known with its job only; add --job JOB")
        read = GivenJob(job, param or [], config, set_flags or [])
        return print_values(savepoint, state, read, before=before, limit=limit, out=out, as_json=as_json)

    run("weir state", show)


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


def _given(values: Mapping[str, str | Path | bool | None]) -> list[str]:
    """Flags with their values, without those that were not given; True: the flag alone."""
    flags: list[str] = []
    for flag, value in values.items():
        if value is not None and value is not False:
            flags += [flag] if value is True else [flag, str(value)]
    return flags


def _repeated(flag: str, values: list[str] | None) -> list[str]:
    return [item for value in values or [] for item in (flag, value)]
