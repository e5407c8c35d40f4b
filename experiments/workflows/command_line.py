"""``python -m experiments workflows``: what it takes. Each command imports what it needs when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weir.process.entry_point import run

_EPILOG = """
Examples:

\b
python -m experiments workflows setup
python -m experiments workflows server --store rocksdb          # in a terminal of its own
python -m experiments workflows launch-tests 1000 2000 100
python -m experiments workflows workflow-metrics 10
python -m experiments workflows streams-metrics
python -m experiments workflows reset
python -m experiments workflows run bars --json bars.json
python -m experiments workflows run bars --only relink --relink 1G --s3-delay-ms 20 --standby-replicas 1
python -m experiments workflows run growth --sizes 0,1G,4G --out out/
python -m experiments workflows run compaction --payload random --out out/compaction
python -m experiments workflows setup --log kafka --dir data/workflows-kafka
"""

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog=_EPILOG,
    help="The workload of a workflow engine: does a state store stand it, with these settings?",
)

DirOption = Annotated[Path, typer.Option("--dir", help="Of the log, the state and the settings of setup.")]
AddressOption = Annotated[str, typer.Option(help="HTTP address of the job's control plane.")]
_DIR = Path("data/workflows")


def _say(line: str) -> None:
    typer.echo(line, err=True)


@app.command()
def setup(
    log: Annotated[str, typer.Option(help="Where commands go: weir (the replicated log) or kafka.")] = "weir",
    bootstrap: Annotated[
        str, typer.Option(help="Brokers that run already; without them, brokers are started here.")
    ] = "",
    brokers: Annotated[int, typer.Option(min=1, max=3, help="Of our own.")] = 1,
    port: Annotated[int, typer.Option(help="Of the first of them; 0: the usual one.")] = 0,
    partitions: Annotated[int, typer.Option(min=1, help="Of the topic with commands.")] = 2,
    directory: DirOption = _DIR,
) -> None:
    """Make the topics, and start brokers if none are named; a second time changes nothing."""

    def main() -> int:
        from experiments.workflows.home import Home, Settings

        Home(directory).set_up(Settings(log, bootstrap, brokers, port, partitions), _say)
        return 0

    run("experiments workflows setup", main)


@app.command()
def server(
    store: Annotated[str, typer.Option(help="rocksdb, memory, hybrid, cassandra or object.")] = "rocksdb",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Of the configuration.")
    ] = None,
    parallelism: Annotated[int, typer.Option(min=1, help="Subtasks of the source and the engine.")] = 2,
    task_managers: Annotated[int, typer.Option(min=1, help="Processes that work.")] = 1,
    form: Annotated[str, typer.Option(help="What the engine takes: batches or records.")] = "batches",
    timers: Annotated[
        str, typer.Option(help="engine, sweep (a range scan with deletes every 40 s) or none.")
    ] = "engine",
    http_port: Annotated[int | None, typer.Option(help="Of the control plane; any if 9008 is taken.")] = None,
    start_fresh: Annotated[bool, typer.Option(help="Discard an earlier run that was killed.")] = False,
    directory: DirOption = _DIR,
) -> None:
    """Run the job until Ctrl-C; after a kill the same command goes on from its checkpoint."""

    def main() -> int:
        from experiments.workflows.home import Home
        from experiments.workflows.server import job_parameters, run_server

        home = Home(directory)
        run_server(
            home,
            store,
            job_parameters(home, parallelism, form, timers),
            task_managers=task_managers,
            http_port=http_port,
            settings=settings or [],
            fresh=start_fresh,
        )
        return 1

    run("experiments workflows server", main)


@app.command("launch-tests")
def launch_tests(
    workflows: Annotated[int, typer.Argument(min=1, help="How many.")],
    payload_bytes: Annotated[int, typer.Argument(min=0, help="Of each completed task.")],
    tasks: Annotated[int, typer.Argument(min=0, help="Of each workflow.")] = 100,
    rate: Annotated[float, typer.Option(min=0, help="Commands per second; 0: as fast as possible.")] = 0.0,
    drivers: Annotated[int, typer.Option(min=1, help="Threads that send; at most one per partition.")] = 1,
    payload: Annotated[
        str, typer.Option(help="compressible (32 hex digits repeated) or random.")
    ] = "compressible",
    directory: DirOption = _DIR,
) -> None:
    """Send the commands of so many workflows, and check that each of them was written."""

    def main() -> int:
        from experiments.workflows.driver import PAYLOADS, Launch, run_launch
        from experiments.workflows.home import Home
        from experiments.workflows.metrics import to_json
        from weir.errors import ConfigError

        if payload not in PAYLOADS:
            raise ConfigError(f"--payload {payload}: there are {', '.join(PAYLOADS)}")
        home = Home(directory)
        launch = Launch(workflows, payload_bytes, tasks, rate, drivers, payload)
        done = run_launch(launch, home.settings.log, home.bootstrap, home.settings.partitions, _say)
        print(to_json(done.to_json()))
        return 0

    run("experiments workflows launch-tests", main)


@app.command("workflow-metrics")
def workflow_metrics(
    count: Annotated[int, typer.Argument(min=1, metavar="N", help="Windows.")] = 100,
    address: AddressOption = "localhost:9008",
) -> None:
    """The latest N windows of 30 s: JSON on standard output, a table on standard error."""

    def main() -> int:
        from experiments.workflows.metrics import table, to_json, workflow_windows

        windows = workflow_windows(address, count)
        print(to_json(windows), flush=True)
        _say(table(windows))
        return 0

    run("experiments workflows workflow-metrics", main)


@app.command("streams-metrics")
def streams_metrics(address: AddressOption = "localhost:9008") -> None:
    """Every metric of the job, its processes and its stores, as JSON."""

    def main() -> int:
        from experiments.workflows.metrics import every_metric, to_json

        print(to_json(every_metric(address)))
        return 0

    run("experiments workflows streams-metrics", main)


@app.command()
def reset(directory: DirOption = _DIR) -> None:
    """Delete topics and state, and set up again. The server must not run."""

    def main() -> int:
        from experiments.workflows.home import Home

        Home(directory).reset(_say)
        return 0

    run("experiments workflows reset", main)


@app.command("run")
def run_set(
    series: Annotated[
        str, typer.Argument(metavar="SERIES", help="bars, growth, payloads, compaction or block-cache.")
    ],
    store: Annotated[str, typer.Option(help="rocksdb, memory, hybrid, cassandra or object.")] = "rocksdb",
    log: Annotated[str, typer.Option(help="weir or kafka.")] = "weir",
    json_path: Annotated[Path | None, typer.Option("--json", help="bars: write the figures here.")] = None,
    repeat: Annotated[
        int, typer.Option(min=1, help="bars: runs as fast as possible; series but growth: rounds.")
    ] = 3,
    shape: Annotated[
        str, typer.Option(help="bars: workflows, payload bytes and tasks per workflow.")
    ] = "1000,2000,100",
    timers: Annotated[int, typer.Option(min=1, help="bars: due at the sweep.")] = 150_000,
    peer: Annotated[bool, typer.Option("--peer", help="bars: run Kafka Streams beside, in turn.")] = False,
    grown: Annotated[
        str, typer.Option(help="bars: payloads in the store for the figures of a large one; 0: none of them.")
    ] = "256M",
    bounded_state: Annotated[
        str, typer.Option(help="bars: payloads in the store where memory is bounded; 0: not measured.")
    ] = "0",
    bounded_memory: Annotated[
        str, typer.Option(help="bars: of all task managers together, the page cache of state included.")
    ] = "2G",
    hot_rows: Annotated[
        int, typer.Option(min=0, help="bars: rows of each run with a hot key; 0: no such runs.")
    ] = 6_000_000,
    relink: Annotated[
        str,
        typer.Option(help="bars: payloads in the store when half of it moves to another process; 0: none."),
    ] = "256M",
    only: Annotated[
        str,
        typer.Option(
            help="bars: some of top, paced, sweep, grown, bounded, hot-keys and relink, with commas between."
        ),
    ] = "",
    s3_delay_ms: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="bars: grown and relink with checkpoints in S3 that waits for so long with each request.",
        ),
    ] = None,
    standby_replicas: Annotated[
        int, typer.Option(min=0, help="bars: grown and relink with so many standbys.")
    ] = 0,
    compare: Annotated[
        bool, typer.Option("--compare/--no-compare", help="bars: also move groups without relinking.")
    ] = True,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="not bars: of the configuration.")
    ] = None,
    sizes: Annotated[str, typer.Option(help="growth: bytes of payloads, e.g. 0,256M,1G.")] = "0,256M,1G",
    out: Annotated[Path, typer.Option(help="not bars: directory of figures and pictures.")] = Path("out"),
    payload: Annotated[str, typer.Option(help="compressible or random.")] = "compressible",
) -> None:
    """Measure on brokers and processes of its own: the bars from empty, while the store grows, or by one setting."""

    def main() -> int:
        from experiments.workflows.series import run_bars_command, run_series_command

        if series == "bars":
            return run_bars_command(
                *(store, log, shape, payload, repeat, timers, peer, grown),
                *((bounded_state, bounded_memory), hot_rows, relink, only),
                *((s3_delay_ms, standby_replicas, compare), json_path, _say),
            )
        return run_series_command(series, store, log, repeat, sizes, payload, out, settings or [], _say)

    run("experiments workflows run", main)


@app.command()
def stop(directory: DirOption = _DIR) -> None:
    """End the brokers that setup has started; their data stays."""

    def main() -> int:
        from experiments.workflows.home import Home

        Home(directory).end_brokers()
        return 0

    run("experiments workflows stop", main)
