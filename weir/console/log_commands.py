"""The commands ``weir log``: what they take. Each imports what it needs when it is called."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from weir.process.entry_point import run

START_EPILOG = """
Examples:

\b
weir log start --brokers 3 --dir data/log
weir log start --brokers 1 --port 17008 --http-port 19007 --dir /dev/shm/log
weir log start --etcd localhost:2379 --dir data/log     # the controller's record is in etcd
curl http://localhost:9007/log                          # what weir log status --json prints
"""

CREATE_EPILOG = """
Examples:

\b
weir log create wal
weir log create wal --partitions 3 --replication 3 --retention 1m
weir log create fast --durability memory --retention-bytes 268435456
weir log create careful --durability fsync --brokers 10.0.0.5:7008,10.0.0.6:7008
"""

DRAIN_EPILOG = """
Examples:

\b
weir log drain 2             # then broker 2 may be stopped for good
weir log drain 2 --undo
"""

BALANCE_EPILOG = """
Examples:

\b
weir log broker --id 4 --controller 10.0.0.5:7007 --dir /data/log     # on a new machine
weir log balance
"""

ACCEPT_EPILOG = """
Examples:

\b
weir log status                  # nobody leads wal/0, and two of its three replicas are away
weir log accept-loss wal/0 2     # go on with what broker 2 has
"""

STATUS_EPILOG = """
Examples:

\b
weir log status
weir log status --brokers 10.0.0.5:7008 --json
"""

log_app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="The replicated log: brokers, topics and their state.",
)

BrokersOption = Annotated[
    str, typer.Option("--brokers", metavar="HOST:PORT[,...]", help="A broker of the log, or several.")
]


@log_app.command("start", epilog=START_EPILOG)
def start_command(
    directory: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where the log is kept.")],
    brokers: Annotated[int, typer.Option(min=1, max=64, help="Number of brokers.")] = 3,
    port: Annotated[
        int, typer.Option(min=2, max=65000, help="Of the first broker; the controller has the one before.")
    ] = 7008,
    http_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Of the controller's page /log; 0: any free one.")
    ] = 9007,
    lease_ms: Annotated[
        int, typer.Option(min=50, help="A broker that is silent for so long is lost.")
    ] = 1000,
    etcd: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT[,...]", help="Keep the controller's record in etcd rather than in DIR."
        ),
    ] = "",
    log_name: Annotated[
        str, typer.Option("--name", help="With --etcd: of this log, if several have their record there.")
    ] = "log",
) -> None:
    """Run a controller and brokers on this machine until Ctrl-C. The same command goes on with what is in DIR.

    A broker that dies is started again. One `weir log broker` per machine makes a log that outlives a machine.
    """

    def start() -> int:
        from weir.console.log_processes import LogStart, run_log

        return run_log(LogStart(directory, brokers, port, http_port, lease_ms, etcd, log_name))

    run("weir log start", start)


@log_app.command("create", epilog=CREATE_EPILOG)
def create_command(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Letters, digits, -, _ and .")],
    partitions: Annotated[int, typer.Option(min=1, help="Each is a log of its own, with a leader.")] = 1,
    replication: Annotated[int, typer.Option(min=1, help="Brokers that keep each partition.")] = 3,
    retention: Annotated[
        str, typer.Option(metavar="DURATION", help="Remove older segments: 5s, 1m, 7d (default: never).")
    ] = "",
    retention_bytes: Annotated[
        int, typer.Option(min=0, help="Remove the oldest segments of a partition beyond so much; 0: never.")
    ] = 0,
    durability: Annotated[
        str, typer.Option(help="When a record counts as kept: memory, os (written) or fsync (synced).")
    ] = "os",
    brokers: BrokersOption = "localhost:7008",
) -> None:
    """Create a topic; with the same settings again: nothing."""

    def create() -> int:
        from weir.console.log_processes import retention_ms
        from weir.log import create_topic

        create_topic(
            brokers,
            topic,
            partitions=partitions,
            replication=replication,
            durability=durability,
            retention_ms=retention_ms(retention),
            retention_bytes=retention_bytes,
        )
        print(f"{topic}: {partitions} partitions, {replication} replicas each, durability {durability}")
        return 0

    run("weir log create", create)


@log_app.command("drain", epilog=DRAIN_EPILOG)
def drain_command(
    broker: Annotated[int, typer.Argument(metavar="ID", min=1, help="Id of the broker.")],
    undo: Annotated[
        bool, typer.Option("--undo", help="Let it have replicas again; `balance` moves some.")
    ] = False,
    brokers: BrokersOption = "localhost:7008",
) -> None:
    """Move all replicas of a broker to others, while producers run, and wait until it has none.

    A dead broker can be drained, too: its replicas are filled from others.
    """

    def drain() -> int:
        from weir.console.log_moves import wait_for_moves
        from weir.log import move_replicas

        if undo:
            move_replicas(brokers, undrain=broker)
            print(f"broker {broker} may have replicas again")
            return 0
        return wait_for_moves(brokers, move_replicas(brokers, drain=broker))

    run("weir log drain", drain)


@log_app.command("accept-loss", epilog=ACCEPT_EPILOG)
def accept_command(
    partition: Annotated[str, typer.Argument(metavar="TOPIC/PARTITION", help="One that nobody leads.")],
    broker: Annotated[int, typer.Argument(metavar="ID", min=1, help="Id of the broker whose data counts.")],
    brokers: BrokersOption = "localhost:7008",
) -> None:
    """Go on with what one broker has, where a majority of a partition's replicas is lost for good.

    What only the others had is lost with this, also if they come back. They are filled from that broker.
    """

    def accept() -> int:
        from weir.console.log_moves import partition_of
        from weir.log import accept_loss

        topic, number = partition_of(partition)
        end = accept_loss(brokers, topic, number, broker)
        print(f"{partition}: broker {broker} leads with what it has, up to offset {end}")
        return 0

    run("weir log accept-loss", accept)


@log_app.command("balance", epilog=BALANCE_EPILOG)
def balance_command(brokers: BrokersOption = "localhost:7008") -> None:
    """Spread replicas and leaderships evenly over the brokers that are there, while producers run, and wait for it."""

    def balance() -> int:
        from weir.console.log_moves import wait_for_moves
        from weir.log import move_replicas

        return wait_for_moves(brokers, move_replicas(brokers))

    run("weir log balance", balance)


@log_app.command("status", epilog=STATUS_EPILOG)
def status_command(
    brokers: BrokersOption = "localhost:7008",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show leaders, epochs, replicas, what they lack, and why one began anew."""

    def status() -> int:
        from weir.console.log_status import print_status
        from weir.log import log_status

        print_status(log_status(brokers), as_json=as_json)
        return 0

    run("weir log status", status)


@log_app.command(
    "broker",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
)
def broker_command(context: typer.Context) -> None:
    """Start one broker, or the controller. Same as python -m log_broker; --help lists its flags."""
    os.execv(sys.executable, [sys.executable, "-m", "log_broker", *context.args])
