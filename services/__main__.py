"""``python -m services``: start, look at and stop a real Kafka and a real Cassandra on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from services import cassandra, kafka, topics
from services.daemon import Daemon, assignments
from services.errors import ServiceError
from services.jars import say
from weir.process.entry_point import run as run_command

_EPILOG = """
Examples:

\b
python -m services kafka start                                one broker on 9092; prints 127.0.0.1:9092
python -m services kafka start --brokers 3 --dir data/kafka   brokers on 9092, 9093, 9094; replication 3
python -m services kafka start --base-port 19092 --set log.retention.ms=60000
python -m services kafka kill 2 --dir data/kafka              kill -9; `start` brings it back
python -m services kafka stop --dir data/kafka --wipe         stop, and delete the data
python -m services kafka fill texts lines.txt                 a topic of the lines of a file; one that is there stays
python -m services kafka tool org.apache.kafka.tools.ProducerPerformance --help
python -m services cassandra start                            CQL on 9042; prints 127.0.0.1:9042
python -m services cassandra start --dir data/cassandra --port 19042 --storage-port 17000
python -m services cassandra status                           exit code 0: it serves; 3: it does not
python -m services cassandra nodetool tablestats KEYSPACE     after a start with --jmx-port 7199
"""

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, epilog=_EPILOG)
kafka_app = typer.Typer(help="Apache Kafka: one or three brokers.", rich_markup_mode=None)
cassandra_app = typer.Typer(help="Apache Cassandra: one node.", rich_markup_mode=None)
app.add_typer(kafka_app, name="kafka")
app.add_typer(cassandra_app, name="cassandra")

_ANY_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
_NOT_SERVING = 3

KafkaDirectory = Annotated[Path, typer.Option("--dir", help="Everything of one cluster: data, logs, pids.")]
CassandraDirectory = Annotated[Path, typer.Option("--dir", help="Everything of one node: data, log, pid.")]
Heap = Annotated[str, typer.Option(help="Of the Java machine of each process.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Of its configuration; repeatable.")
]
Wipe = Annotated[bool, typer.Option("--wipe", help="kill -9, and delete the directory.")]
Grace = Annotated[float, typer.Option(min=0, help="From SIGTERM to SIGKILL.")]
Timeout = Annotated[float, typer.Option(min=0, help="For it to serve.")]


@app.callback()
def _describe() -> None:
    """Real services for tests and benchmarks; needs Java 17 and Maven, neither containers nor root."""


@kafka_app.command("start")
def kafka_start(
    directory: KafkaDirectory = kafka.DIRECTORY,
    brokers: Annotated[int, typer.Option(help="1 or 3.")] = 1,
    base_port: Annotated[int, typer.Option(help="Brokers at P, P+1, P+2; controllers 10 above.")] = 9092,
    heap: Heap = "512m",
    properties: Set = None,
    timeout_s: Timeout = 120.0,
) -> None:
    """Start the brokers that do not run; return when all serve."""

    def main() -> int:
        if brokers not in (1, 3):
            raise ServiceError(f"--brokers {brokers}: 1 or 3")
        values = assignments(properties or [])
        print(
            kafka.start(
                directory.resolve(),
                brokers=brokers,
                base_port=base_port,
                heap=heap,
                properties=values,
                timeout_s=timeout_s,
            )
        )
        return 0

    run_command("services", main)


@kafka_app.command("stop")
def kafka_stop(
    directory: KafkaDirectory = kafka.DIRECTORY, wipe: Wipe = False, grace_s: Grace = 15.0
) -> None:
    """Stop all brokers."""
    _run(lambda: kafka.stop(directory.resolve(), wipe=wipe, grace_s=grace_s))


@kafka_app.command("kill")
def kafka_kill(
    broker: Annotated[int, typer.Argument(help="1 to 3.")], directory: KafkaDirectory = kafka.DIRECTORY
) -> None:
    """Kill one broker (SIGKILL); start brings it back."""
    _run(lambda: kafka.kill(directory.resolve(), broker))


@kafka_app.command("status")
def kafka_status(directory: KafkaDirectory = kafka.DIRECTORY) -> None:
    """Say what runs; exit code 3 unless every broker serves."""
    run_command("services", lambda: _print_states(directory, kafka.states(directory.resolve())))


@kafka_app.command("fill")
def kafka_fill(
    topic: str,
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A record for each line.")],
    bootstrap: Annotated[str, typer.Option(help="Addresses of brokers.")] = "localhost:9092",
) -> None:
    """Make a topic with the lines of a file; one that is there stays as it is."""

    def main() -> None:
        count = topics.fill(bootstrap, topic, path)
        say(f"topic {topic} has the {count} lines of {path}" if count else f"topic {topic} is there already")

    _run(main)


@kafka_app.command("tool", context_settings=_ANY_ARGUMENTS)
def kafka_tool(context: typer.Context, main_class: str) -> None:
    """Run a main class of Kafka's jars."""
    _run(lambda: kafka.run_tool(main_class, context.args))


@cassandra_app.command("start")
def cassandra_start(
    directory: CassandraDirectory = cassandra.DIRECTORY,
    port: Annotated[int, typer.Option(help="Of CQL.")] = 9042,
    storage_port: Annotated[int, typer.Option(help="Between nodes.")] = 7000,
    jmx_port: Annotated[int, typer.Option(help="On 127.0.0.1, without a password; 0: no JMX.")] = 0,
    heap: Heap = "1g",
    properties: Set = None,
    timeout_s: Timeout = 180.0,
) -> None:
    """Start the node; return when it serves CQL."""

    def main() -> int:
        values = assignments(properties or [])
        print(
            cassandra.start(
                directory.resolve(),
                port=port,
                storage_port=storage_port,
                jmx_port=jmx_port,
                heap=heap,
                properties=values,
                timeout_s=timeout_s,
            )
        )
        return 0

    run_command("services", main)


@cassandra_app.command("stop")
def cassandra_stop(
    directory: CassandraDirectory = cassandra.DIRECTORY, wipe: Wipe = False, grace_s: Grace = 30.0
) -> None:
    """Stop the node."""
    _run(lambda: cassandra.stop(directory.resolve(), wipe=wipe, grace_s=grace_s))


@cassandra_app.command("kill")
def cassandra_kill(directory: CassandraDirectory = cassandra.DIRECTORY) -> None:
    """Kill the node (SIGKILL); start brings it back."""
    _run(lambda: cassandra.kill(directory.resolve()))


@cassandra_app.command("status")
def cassandra_status(directory: CassandraDirectory = cassandra.DIRECTORY) -> None:
    """Say whether it runs; exit code 3 unless it serves."""
    run_command("services", lambda: _print_states(directory, cassandra.states(directory.resolve())))


@cassandra_app.command("nodetool", context_settings=_ANY_ARGUMENTS)
def cassandra_nodetool(context: typer.Context, directory: CassandraDirectory = cassandra.DIRECTORY) -> None:
    """Run nodetool against the node."""
    _run(lambda: cassandra.run_nodetool(directory.resolve(), context.args))


def _run(work: Callable[[], None]) -> None:
    def main() -> int:
        work()
        return 0

    run_command("services", main)


def _print_states(directory: Path, states: list[tuple[Daemon, int, str]]) -> int:
    if not states:
        print(f"never started in {directory}")
    for process, port, state in states:
        facts = f"pid {process.pid or '-'}  {process.memory_mib} MiB  log {process.log_path}"
        print(f"{process.name}  port {port}  {state}  {facts}")
    return 0 if states and all(state == "serving" for *_, state in states) else _NOT_SERVING


if __name__ == "__main__":
    app(prog_name="python -m services")
