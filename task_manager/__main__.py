"""``python -m task_manager``: one task manager process."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

# Each subtask has a thread of its own; a pool of threads below each of them would only add switches.
os.environ.setdefault("POLARS_MAX_THREADS", "1")
# Arrow takes the C library's blocks, which are kept when they are freed: see ``keep_freed_memory``. Read when pyarrow
# is loaded. Of Arrow's own allocator, blocks that another thread freed were new from the kernel again and again.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

import typer

from weir.errors import ConfigError, HandshakeError
from weir.process.descriptors import raise_limit
from weir.process.entry_point import (
    InsecureOption,
    LogFileOption,
    ParentOption,
    VerboseOption,
    begin_identity,
    keep_freed_memory,
    run,
    set_up_logging,
    settings,
    settle_memory,
)
from weir.process.lifeline import Parent

if TYPE_CHECKING:
    from weir.config import LoadedConfig

log = logging.getLogger("task_manager")

#: A thread that holds the GIL gives it up after this long when another one waits (Python's default is 5 ms).
_GIL_SWITCH_INTERVAL_S = 0.0005
_PORT_FLAG = "-port="

EPILOG = """
Examples:

\b
python -m task_manager
python -m task_manager --port 8028
python -m task_manager --control-plane 10.0.0.5:8008,10.0.0.6:8008
python -m task_manager --control-plane 10.0.0.5:8008 --set taskManager.operator_quota=8
"""

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(epilog=EPILOG)
def main(
    port: Annotated[
        int | None, typer.Option(help="gRPC port (config.json: 8018); -port=8028 works, too.")
    ] = None,
    control_plane: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT[,...]",
            help="Address of the control plane (config.json: 127.0.0.1:8008), or of several, of which one leads.",
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Configuration file (default: config.json).")] = None,
    set_flags: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key: taskManager.batch_size=1000."),
    ] = None,
    prometheus_port: Annotated[
        int | None, typer.Option(help="Port of the metrics page, if prometheus.enabled is set.")
    ] = None,
    insecure: InsecureOption = False,
    verbose: VerboseOption = False,
    log_file: LogFileOption = None,
    parent_fd: ParentOption = None,
) -> None:
    """Run the parts of a job that the control plane assigns to this process; end it with Ctrl-C or SIGTERM.

    The process waits for a control plane that is not up yet, and goes on with its job while no control plane answers.
    At SIGTERM other task managers take over its subtasks, if they have room. Ctrl-C or a second SIGTERM ends the
    process at once.
    """
    # First of all, so that this process never outlives the one that started it.
    parent = None if parent_fd is None else Parent.at(parent_fd)
    name = f"task_manager:{port}" if port else "task_manager"
    raise_limit()
    set_up_logging(name, verbose=verbose, path=log_file)

    def serve() -> int:
        overrides = _overrides(port, control_plane, prometheus_port)
        if insecure:
            overrides["security.insecure"] = "true"
        return _serve(overrides, config, set_flags or [], parent)

    run("task_manager", serve)


def _overrides(port: int | None, control_plane: str | None, prometheus_port: int | None) -> dict[str, str]:
    from weir.rpc.wire import parse_address

    overrides = {}
    if port is not None:
        overrides["taskManager.tm_port"] = str(port)
    if control_plane is not None:
        try:
            addresses = [parse_address(text.strip()) for text in control_plane.split(",")]
        except HandshakeError as error:
            raise ConfigError(f"--control-plane {error}") from error
        overrides["taskManager.cp_host"] = addresses[0].host
        overrides["taskManager.cp_port"] = str(addresses[0].port)
        overrides["taskManager.control_planes"] = ",".join(map(str, addresses[1:]))
    if prometheus_port is not None:
        overrides["prometheus.prometheus_port"] = str(prometheus_port)
    return overrides


def _serve(overrides: dict[str, str], path: Path | None, set_flags: list[str], parent: Parent | None) -> int:
    if parent is None:
        loaded = settings(path, set_flags, overrides)
    from task_manager.process import TaskManagerProcess

    if parent is not None:
        # The control plane has read the settings by now: what is wrong with them is told once, and not by each process.
        overrides.update(_overrides(None, parent.receive()["control_plane"], None))
        loaded = settings(path, set_flags, overrides, tells_of_absence=False)
    _begin(loaded)
    settle_memory()
    keep_freed_memory()
    sys.setswitchinterval(_GIL_SWITCH_INTERVAL_S)
    process = TaskManagerProcess(
        loaded.config,
        own_port="taskManager.tm_port" in overrides,
        own_metrics_port="prometheus.prometheus_port" in overrides,
    )
    signal.signal(signal.SIGTERM, lambda *_: process.drain())
    signal.signal(signal.SIGINT, lambda *_: process.stop())
    return process.run()


def _begin(loaded: LoadedConfig) -> None:
    hosts = {"taskManager.host": loaded.config.task_manager.host}
    if loaded.config.prometheus.enabled:
        hosts["prometheus.prometheus_host"] = loaded.config.prometheus.prometheus_host
    section = loaded.config
    if section.prometheus.enabled and section.security.directory:
        raise ConfigError(
            "prometheus.enabled = true: the page of metrics knows no tokens; where security.directory is set, ask for "
            "/metrics at taskManager.http_port with the token in look.token"
        )
    begin_identity("task-manager", loaded, hosts)


def _arguments(arguments: list[str]) -> list[str]:
    """Accept the predecessor's ``-port=8028`` beside ``--port 8028``."""
    return [f"-{argument}" if argument.startswith(_PORT_FLAG) else argument for argument in arguments]


def start() -> None:
    """``python -m task_manager``."""
    app(args=_arguments(sys.argv[1:]), prog_name="python -m task_manager")


if __name__ == "__main__":
    start()
