"""``python -m control_plane --job MODULE``: the process that decides."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from control_plane.start_command import StartCommand
from weir.console.options import DroppedStateOption, ParamOption, ReportOption, SavepointOption, StrictOption
from weir.errors import ConfigError
from weir.process.descriptors import raise_limit
from weir.process.entry_point import (
    InsecureOption,
    LogFileOption,
    ParentOption,
    VerboseOption,
    begin_identity,
    parameter_texts,
    run,
    set_up_logging,
    settings,
    settle_memory,
)
from weir.process.lifeline import Parent

if TYPE_CHECKING:
    from weir.config import Config

EPILOG = """
Examples:

\b
python -m control_plane --job jobs.server_count
python -m control_plane --job jobs.server_count --task-managers 2 --param rate=50000
python -m control_plane --job jobs.server_count --exit-when-finished
python -m control_plane --job jobs.server_count --follow
python -m control_plane --job jobs.server_count --from-savepoint savepoints/monday
python -m control_plane --job jobs.server_count --from-checkpoint checkpoints/server_count-20260102-030405-6789
python -m control_plane --job jobs.server_count --start-fresh
python -m control_plane --job jobs.server_count --show-parameters
"""

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


JobOption = Annotated[str, typer.Option(help="Module with the job's build function, e.g. jobs.server_count.")]
PortOption = Annotated[int | None, typer.Option(help="gRPC port for task managers (config.json: 8008).")]
HttpPortOption = Annotated[int | None, typer.Option(help="HTTP port (config.json: 9008).")]
#: For ``weir run``.
AnyPortOption = Annotated[bool, typer.Option("--or-any-http-port", hidden=True)]
ContinuedOption = Annotated[str, typer.Option("--continue-job", hidden=True)]
TaskManagersOption = Annotated[
    int | None,
    typer.Option(help="Number of task managers to wait for before the job starts (config.json: 1)."),
]
ExitOption = Annotated[
    bool,
    typer.Option(
        "--exit-when-finished", help="End all processes, task managers too, when the job has ended."
    ),
]
FollowOption = Annotated[
    bool,
    typer.Option(
        "--follow",
        help="Show the job live on the terminal: rate, checkpoints, rescales, restores. In a file: lines.",
    ),
]
CheckpointOption = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="Start from a checkpoint that a cancelled or failed job left: its folder in the checkpoint store, or "
        "one of its manifests.",
    ),
]
FreshOption = Annotated[
    bool,
    typer.Option(
        "--start-fresh",
        help="Discard the job that an earlier control plane left running, and start from nothing.",
    ),
]
ConfigOption = Annotated[Path | None, typer.Option(help="Configuration file (default: config.json).")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key: controlPlane.max_parallelism=1024."),
]
ShowParametersOption = Annotated[
    bool, typer.Option("--show-parameters", help="List the job's parameters and exit.")
]


@app.command(epilog=EPILOG)
def main(
    job: JobOption,
    param: ParamOption = None,
    port: PortOption = None,
    http_port: HttpPortOption = None,
    task_managers: TaskManagersOption = None,
    exit_when_finished: ExitOption = False,
    follow: FollowOption = False,
    from_savepoint: SavepointOption = None,
    from_checkpoint: CheckpointOption = None,
    start_fresh: FreshOption = False,
    allow_dropped_state: DroppedStateOption = False,
    strict: StrictOption = False,
    report: ReportOption = None,
    config: ConfigOption = None,
    set_flags: SetOption = None,
    show_parameters: ShowParametersOption = False,
    insecure: InsecureOption = False,
    verbose: VerboseOption = False,
    log_file: LogFileOption = None,
    parent_fd: ParentOption = None,
    or_any_http_port: AnyPortOption = False,
    continue_job: ContinuedOption = "",
) -> None:
    """Wait for task managers, run one job on them, and answer on HTTP: /status, /plan, /docs and more.

    Without --exit-when-finished the process stays up after the end of the job, so that you can look at the job.
    """
    # First of all, so that this process never outlives the one that started it.
    parent = None if parent_fd is None else Parent.at(parent_fd, _show)
    raise_limit()
    set_up_logging("control_plane", verbose=verbose, path=log_file, has_parent=parent is not None)
    # Who started "weir run" knows of no control plane.
    name = "control_plane" if parent is None else "weir run"
    if show_parameters:
        run(name, lambda: _show_parameters(job))
    overrides = _overrides(port, http_port, task_managers, strict, insecure)

    def serve() -> int:
        command = StartCommand(
            job,
            parameter_texts(param or []),
            exit_when_finished=exit_when_finished,
            follows=follow,
            savepoint=_start_from(from_savepoint, from_checkpoint, start_fresh=start_fresh),
            allow_dropped=allow_dropped_state,
            starts_fresh=start_fresh,
            parent=parent,
            or_any_http_port=or_any_http_port,
            continued_job=continue_job,
            report_path="" if report is None else str(report),
        )
        loaded = settings(config, set_flags or [], overrides, tells_of_absence=parent is None)
        begin_identity("control-plane", loaded, {"controlPlane.host": loaded.config.control_plane.host})
        return _serve(loaded.config, command)

    run(name, serve)


def _overrides(
    port: int | None, http_port: int | None, task_managers: int | None, strict: bool, insecure: bool
) -> dict[str, str]:
    flags = {
        "controlPlane.cp_grpc_port": port,
        "controlPlane.control_port": http_port,
        "controlPlane.min_task_managers": task_managers,
        "controlPlane.strict": "true" if strict else None,
        "security.insecure": "true" if insecure else None,
    }
    return {key: str(value) for key, value in flags.items() if value is not None}


def _start_from(savepoint: str | None, checkpoint: str | None, *, start_fresh: bool) -> str:
    """The savepoint or checkpoint to start from; empty: none."""
    given = {"--from-savepoint": savepoint, "--from-checkpoint": checkpoint, "--start-fresh": start_fresh}
    names = [name for name, value in given.items() if value]
    if len(names) > 1:
        raise ConfigError(f"{' and '.join(names)} exclude each other; give one of them")
    return savepoint or checkpoint or ""


def _show_parameters(job: str) -> int:
    from weir.dataflow.loading import describe_parameters

    print("\n".join(describe_parameters(job)))
    return 0


def _serve(config: Config, command: StartCommand) -> int:
    # Takes most of a second: what is wrong with the options is told before.
    from control_plane.process import serve

    settle_memory()
    return asyncio.run(serve(config, command))


def _show(text: str) -> None:
    """Above what ``--follow`` draws, which has put a stream of its own here."""
    sys.stderr.write(text)
    sys.stderr.flush()


def start() -> None:
    """``python -m control_plane``."""
    app(prog_name="python -m control_plane")


if __name__ == "__main__":
    start()
