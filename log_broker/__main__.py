"""``python -m log_broker``: one broker, or the controller, of the replicated log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weir.errors import ConfigError
from weir.process.entry_point import (
    LogFileOption,
    ParentOption,
    keep_freed_memory,
    run,
    set_up_logging,
    settle_memory,
)
from weir.process.lifeline import Parent

EPILOG = """
Examples:

\b
python -m log_broker --controller-only --port 7007 --dir data/log/controller
python -m log_broker --controller-only --host 10.0.0.5 --etcd 10.0.0.5:2379,10.0.0.6:2379
python -m log_broker --id 1 --port 7008 --controller 127.0.0.1:7007 --dir data/log/1
python -m log_broker --id 2 --host 0.0.0.0 --advertised-host 10.0.0.6 --controller 10.0.0.5:7007 --dir /data/log
"""

EtcdOption = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT[,...]", help="Of the controller: its record is in etcd, and several may run."
    ),
]
SecurityDirOption = Annotated[
    str,
    typer.Option(
        "--security-dir",
        envvar="WEIR_SECURITY_DIRECTORY",
        metavar="DIR",
        help="Certificates that 'weir security init' has made.",
    ),
]
InsecureOption = Annotated[
    bool,
    typer.Option(
        "--insecure", envvar="WEIR_SECURITY_INSECURE", help="Check no caller, also beyond this machine."
    ),
]

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(epilog=EPILOG)
def main(
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="Where data, or the record, is kept.")
    ] = None,
    broker_id: Annotated[
        int, typer.Option("--id", min=1, help="Of this broker; the same at each start.")
    ] = 1,
    port: Annotated[int, typer.Option(min=0, max=65535, help="gRPC port; 0: any free one.")] = 7008,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    advertised_host: Annotated[
        str, typer.Option(help="Address under which others reach this process (default: --host).")
    ] = "",
    advertised_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port under which others reach this broker; 0: --port.")
    ] = 0,
    controller: Annotated[
        str, typer.Option(metavar="HOST:PORT[,...]", help="Address of the controller, or of several.")
    ] = "127.0.0.1:7007",
    controller_only: Annotated[
        bool, typer.Option("--controller-only", help="Be the controller, not a broker.")
    ] = False,
    etcd: EtcdOption = "",
    log_name: Annotated[
        str, typer.Option("--name", help="With --etcd: of this log, if several have their record there.")
    ] = "log",
    http_port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Of the controller: port of the page /log; 0: any free one."),
    ] = 9007,
    lease_ms: Annotated[
        int, typer.Option(min=50, help="Of the controller: a broker that is silent for so long is lost.")
    ] = 1000,
    salvage: Annotated[
        str,
        typer.Option(
            metavar="TOPIC/PARTITION",
            help="Put back what the replica of a broker that does not run had before it began anew.",
        ),
    ] = "",
    security_directory: SecurityDirOption = "",
    insecure: InsecureOption = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log more.")] = False,
    log_file: LogFileOption = None,
    parent_fd: ParentOption = None,
) -> None:
    """Keep partitions of the replicated log, or decide who leads them; end it with Ctrl-C or SIGTERM."""
    if parent_fd is not None:
        # First of all, so that this process never outlives the one that started it.
        Parent.at(parent_fd)
    name = "log_controller" if controller_only else f"log_broker:{broker_id}"
    set_up_logging(name, verbose=verbose, path=log_file)

    def serve() -> int:
        from log_broker.process import RecordPlace, run_broker, run_controller, run_salvage

        if salvage and directory is not None:
            return run_salvage(directory, salvage)

        begin_identity(directory=security_directory, insecure=insecure, host=host)
        settle_memory()
        keep_freed_memory()
        if controller_only:
            record = RecordPlace(directory, [text.strip() for text in etcd.split(",") if text], log_name)
            return run_controller(host, port, record, lease_ms / 1000, http_port, advertised_host)
        if directory is None:
            raise ConfigError("a broker needs a directory for its data: give --dir")
        return run_broker(broker_id, host, port, controller, directory, advertised_host, advertised_port)

    run(name, serve)


def begin_identity(*, directory: str, insecure: bool, host: str) -> None:
    """Take on who this process is.

    Raises:
        ConfigError: certificates or the secret cannot be read, or it would listen beyond this machine without any.
    """
    from weir.security.identity import begin, check_reach, section_of_environment
    from weir.security.roles import Role

    section = section_of_environment().model_copy(update={"directory": directory, "insecure": insecure})
    check_reach(host, "--host", section)
    begin(Role.LOG_BROKER, section)


def start() -> None:
    """``python -m log_broker``."""
    app(prog_name="python -m log_broker")


if __name__ == "__main__":
    start()
