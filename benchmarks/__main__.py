"""``python -m benchmarks NAME``: run one benchmark, print a table, write JSON."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.command_line import (
    ChangeShare,
    Compare,
    CorpusName,
    Json,
    Keys,
    OfferedRate,
    Parallelism,
    PayloadBytes,
    Repeat,
    Report,
    SettleS,
    SinkName,
    StateBytes,
    TaskManagers,
    WhoseState,
    check_state,
    execute,
)
from weir.entry_point import run as run_command

_EPILOG = """
Examples:

\b
python -m benchmarks throughput --json data/benchmarks/results/throughput.json
python -m benchmarks throughput --one-core --repeat 5
python -m benchmarks throughput --events 30000000
python -m benchmarks throughput --input wikipedia
python -m benchmarks throughput --input parquet
python -m benchmarks latency --rate 100
python -m benchmarks sinks --sink parquet
python -m benchmarks latency --rate 0
python -m benchmarks wide_job --rate 200
python -m benchmarks wide_rows
python -m benchmarks state --keys 10000000
python -m benchmarks functions
python -m benchmarks nexmark --query q1 --query q22
python -m benchmarks rescale --state-bytes 1e9 --rate 50000 --strategy migrate
python -m benchmarks rescale --steady
python -m benchmarks checkpoint --state-bytes 1e9 --rate 50000
python -m benchmarks recovery --state-bytes 1e9 --rate 50000
python -m benchmarks report

Only nexmark needs Java, to compare. Inputs have the lines that workgen.py makes, and are kept in data/benchmarks.
"""
RESULTS_DIRECTORY = Path("benchmarks/results")

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, epilog=_EPILOG)


@app.callback()
def _describe() -> None:
    """Benchmarks on real processes. Each one checks what it computes and fails (exit code 1) if it is wrong."""
    # The processes of a benchmark end on Ctrl-C; they shall also when this is killed, or its terminal goes away.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


@app.command()
def throughput(
    json: Json = None,
    input: Annotated[CorpusName, typer.Option(help="What the lines look like.")] = "flat",
    events: Annotated[
        int | None,
        typer.Option(min=1, help="Events of one run (millions: flat 10, csv 8, parquet 3, others 1)."),
    ] = None,
    keys: Keys = 100_000,
    repeat: Repeat = 3,
    parallelism: Parallelism = 2,
    task_managers: TaskManagers = 2,
    one_core: Annotated[
        bool, typer.Option("--one-core", help="One task manager held to one core, parallelism 1.")
    ] = False,
    compare_events: Annotated[
        int | None,
        typer.Option(min=1, help="Run with so many events too: do larger files run slower per event?"),
    ] = None,
) -> None:
    """Events per second of the whole engine with durable state, beside batch queries on the same input."""
    if input == "parquet":
        _payload_throughput(json, events or 3_000_000, repeat)
        return
    if input != "flat":
        _corpus_throughput(json, input, events or (8_000_000 if input == "csv" else 1_000_000), repeat)
        return

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import throughput as benchmark

        options = benchmark.ThroughputOptions(
            events or 10_000_000, keys, repeat, parallelism, task_managers, one_core
        )
        return benchmark.run(options, report, compare_events=compare_events).as_json()

    execute(measure, json)


def _corpus_throughput(json: Path | None, corpus: str, events: int, repeat: int) -> None:
    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import corpus_throughput as benchmark

        return benchmark.run(benchmark.CorpusOptions(corpus, events, repeat), report).as_json()

    execute(measure, json)


def _payload_throughput(json: Path | None, events: int, repeat: int) -> None:
    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import payload_throughput as benchmark

        return benchmark.run(benchmark.PayloadOptions(events, repeat=repeat), report).as_json()

    execute(measure, json)


@app.command()
def latency(
    json: Json = None,
    rate: Annotated[
        float, typer.Option(min=0, help="Events per second, open loop; 0: an idle job, its processors only.")
    ] = 10_000,
    duration_s: Annotated[float, typer.Option(min=0.1, help="Length of a run.")] = 30,
    events: Annotated[
        int | None, typer.Option(min=1, help="Instead of --duration-s: events of a run.")
    ] = None,
    keys: Keys = 100_000,
    repeat: Repeat = 3,
    parallelism: Parallelism = 2,
    task_managers: TaskManagers = 2,
    batch_timeout_ms: Annotated[int, typer.Option(min=0, help="taskManager.batch_timeout_ms.")] = 10,
) -> None:
    """Latency from the scheduled time of an event to the sink, at a fixed rate."""

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import latency as benchmark

        options = benchmark.LatencyOptions(
            rate,
            events / rate if events is not None and rate else duration_s,
            keys,
            repeat,
            parallelism,
            task_managers,
            batch_timeout_ms,
        )
        return benchmark.run(options, report).as_json()

    execute(measure, json)


@app.command()
def sinks(
    json: Json = None,
    sink: Annotated[SinkName, typer.Option(help="What is written.")] = "parquet",
    events: Annotated[int, typer.Option(min=1, help="Rows of one run.")] = 20_000_000,
    repeat: Repeat = 3,
    roll_ms: Annotated[
        float | None, typer.Option(min=0, help="Let files hold the rows of many checkpoints.")
    ] = None,
    checkpoint_interval_ms: Annotated[int, typer.Option(min=1, help="Time between checkpoints.")] = 1_000,
) -> None:
    """Rows per second into a transactional file sink, beside Polars' sink of the same rows."""

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import sinks as benchmark

        options = benchmark.SinksOptions(sink, events, repeat, roll_ms, checkpoint_interval_ms)
        return benchmark.run(options, report).as_json()

    execute(measure, json)


@app.command("wide_job")
def wide_job(
    json: Json = None,
    rate: Annotated[
        float, typer.Option(min=0, help="Events per second of both sources together; 0: an idle job.")
    ] = 200,
    duration_s: Annotated[float, typer.Option(min=3, help="Measured, after 4 s of warm-up.")] = 20,
    keys: Keys = 1_000,
    repeat: Repeat = 1,
) -> None:
    """9 stages, 21 subtasks: processors used, lag of the sink's watermark, time of checkpoints."""

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import wide_job as benchmark

        options = benchmark.WideOptions(rate, duration_s, keys, repeat)
        return benchmark.run(options, report).as_json()

    execute(measure, json)


@app.command()
def nexmark(
    json: Json = None,
    query: Annotated[
        list[str] | None, typer.Option(help="Name of a query, such as q1; may be repeated. All if not given.")
    ] = None,
    events: Annotated[int, typer.Option(min=1, help="People, auctions and bids of a run.")] = 10_000_000,
    repeat: Repeat = 3,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare/--no-compare", help="Compare each result with Spark SQL's, which needs Java."
        ),
    ] = True,
) -> None:
    """Queries over an online auction: events per second, CPU, and whether the result is that of Spark SQL."""

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import nexmark as benchmark

        options = benchmark.NexmarkOptions(tuple(query or ()), events, repeat, compare)
        return benchmark.run(options, report).as_json()

    execute(measure, json)


@app.command()
def functions(
    json: Json = None,
    events: Annotated[
        int, typer.Option(min=1, help="Events of one run per batch; a fifth of them per record.")
    ] = 10_000_000,
    keys: Keys = 1_000_000,
    repeat: Repeat = 3,
    parallelism: Parallelism = 2,
    task_managers: TaskManagers = 2,
    only: Annotated[
        list[str] | None, typer.Option(help="Name of a measurement, such as per_batch; may be repeated.")
    ] = None,
) -> None:
    """Operators that users write, with declared state: per record and per batch, on task managers."""

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import functions as benchmark

        options = benchmark.FunctionsOptions(
            events, keys, repeat, parallelism, task_managers, tuple(only or ())
        )
        return benchmark.run(options, report).as_json()

    execute(measure, json)


@app.command()
def state(
    json: Json = None,
    events: Annotated[int, typer.Option(min=1, help="Updates of one run.")] = 10_000_000,
    keys: Keys = 10_000_000,
    repeat: Repeat = 1,
) -> None:
    """Uniform updates of ten times more keys than the cache holds."""

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import state_bench

        return state_bench.run(events, keys, repeat, on_progress=lambda step: report(step, 0.0))

    execute(measure, json)


@app.command()
def transport(
    json: Json = None,
    events: Annotated[int, typer.Option(min=1, help="Rows per batch size, at most.")] = 10_000_000,
    repeat: Repeat = 3,
) -> None:
    """Rows per second over the channel between two task managers, by batch size."""

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import transport as benchmark

        return benchmark.run(events, repeat, report).as_json()

    execute(measure, json)


@app.command()
def overload(
    json: Json = None,
    duration_s: Annotated[float, typer.Option(min=1, help="About how long the run takes.")] = 60,
    sink_rate: Annotated[float, typer.Option(min=1, help="Rows per second that the sinks take.")] = 100_000,
    keys: Keys = 100_000,
    parallelism: Parallelism = 2,
    task_managers: TaskManagers = 2,
) -> None:
    """A sink slower than the source: memory must stay flat and nothing may be lost."""

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import overload as benchmark

        options = benchmark.OverloadOptions(duration_s, sink_rate, keys, parallelism, task_managers)
        return benchmark.run(options, report).as_json()

    execute(measure, json)


@app.command("wide_rows")
def wide_rows(
    json: Json = None,
    row_bytes: Annotated[int, typer.Option(min=1000, help="Payload of a long row.")] = 16 << 20,
    columns: Annotated[int, typer.Option(min=2, help="Columns of a wide row.")] = 1_000,
    dead_letter_rate: Annotated[float, typer.Option(min=1, help="Rows put aside per second.")] = 10_000,
    parallelism: Parallelism = 2,
    task_managers: TaskManagers = 2,
) -> None:
    """Rows of 16 MB, of 1,000 columns, 10,000 dead letters a second: memory below its bound, nothing lost."""

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import wide_rows as benchmark

        options = benchmark.WideRowsOptions(
            row_bytes=row_bytes,
            columns=columns,
            dead_letter_rate=dead_letter_rate,
            dead_letters=int(12 * dead_letter_rate),
            parallelism=parallelism,
            task_managers=task_managers,
        )
        return benchmark.run(options, report).as_json()

    execute(measure, json)


@app.command("bad_input")
def bad_input(
    json: Json = None,
    events: Annotated[int, typer.Option(min=1, help="Good lines.")] = 100_000,
    bad: Annotated[int, typer.Option(min=1, help="Bad lines.")] = 10_000,
) -> None:
    """Fuzzed lines among good ones: all good ones counted, all bad ones in the dead-letter files."""

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import bad_input as benchmark

        return benchmark.run(report, good=events, bad=bad).as_json()

    execute(measure, json)


@app.command()
def startup(json: Json = None, repeat: Repeat = 5) -> None:
    """From process start to the first event processed."""

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import start_up

        return start_up.run(repeat, report).as_json()

    execute(measure, json)


@app.command()
def rescale(
    json: Json = None,
    strategy: Annotated[str, typer.Option(help="local, hybrid, hybrid-no-cache or migrate.")] = "migrate",
    state: WhoseState = "count",
    state_bytes: StateBytes = 1e9,
    payload_bytes: PayloadBytes = 1024,
    rate: OfferedRate = 50_000,
    duration_s: Annotated[float, typer.Option(min=2, help="Offered after the prefill.")] = 60,
    before_s: Annotated[float, typer.Option(min=0.1, help="Measured before the request.")] = 5,
    settle_s: SettleS = 3,
    scale_in: Annotated[bool, typer.Option("--scale-in", help="2 -> 1 instead of 1 -> 2.")] = False,
    steady: Annotated[
        bool, typer.Option("--steady", help="Instead: throughput after scaling, hybrid beside local.")
    ] = False,
    keys: Annotated[int, typer.Option(min=100, help="With --steady: number of keys.")] = 1_000_000,
    events: Annotated[int, typer.Option(min=100, help="With --steady: events of a run.")] = 8_000_000,
    repeat: Repeat = 1,
) -> None:
    """A stage scaled under load: gaps and latencies at the sink, losses, bytes moved, by state strategy."""

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import rescale as benchmark
        from benchmarks import rescale_steady

        if steady:
            return rescale_steady.run(rescale_steady.SteadyOptions(keys, events, repeat), report).as_json()
        return benchmark.run(
            benchmark.RescaleOptions(
                strategy=benchmark.check_strategy(strategy),
                state=check_state(state),
                state_bytes=state_bytes,
                payload_bytes=payload_bytes,
                rate=rate,
                duration_s=duration_s,
                before_s=before_s,
                settle_s=settle_s,
                scale_in=scale_in,
                repeat=repeat,
            ),
            report,
        ).as_json()

    execute(measure, json)


@app.command()
def checkpoint(
    json: Json = None,
    state_bytes: StateBytes = 1e9,
    payload_bytes: PayloadBytes = 1024,
    rate: OfferedRate = 50_000,
    duration_s: Annotated[float, typer.Option(min=2, help="Measured, after the prefill.")] = 30,
    settle_s: SettleS = 5,
    change_share: ChangeShare = 0.01,
    interval_ms: Annotated[int, typer.Option(min=10, help="controlPlane.checkpoint_interval_ms.")] = 1000,
    parallelism: Parallelism = 2,
    compare: Compare = True,
    events: Annotated[int, typer.Option(min=0, help="Events of a throughput run; 0: none.")] = 10_000_000,
    pairs: Annotated[int, typer.Option(min=1, help="Throughput runs with checkpoints, and without.")] = 5,
    repeat: Repeat = 1,
) -> None:
    """Duration and size of checkpoints under load, by size of the state; throughput with them and without."""

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import checkpoint as benchmark

        options = benchmark.CheckpointOptions(
            state_bytes=state_bytes,
            payload_bytes=payload_bytes,
            rate=rate,
            duration_s=duration_s,
            settle_s=settle_s,
            change_share=change_share,
            interval_ms=interval_ms,
            parallelism=parallelism,
            compare=compare,
            events=events,
            pairs=pairs,
            repeat=repeat,
        )
        return benchmark.run(options, report).as_json()

    execute(measure, json)


@app.command()
def recovery(
    json: Json = None,
    state: WhoseState = "count",
    state_bytes: StateBytes = 1e9,
    payload_bytes: PayloadBytes = 1024,
    rate: OfferedRate = 50_000,
    duration_s: Annotated[float, typer.Option(min=2, help="Offered after prefill and settling.")] = 45,
    settle_s: SettleS = 5,
    before_s: Annotated[float, typer.Option(min=0.1, help="Measured before the kill.")] = 5,
    change_share: ChangeShare = 0.01,
    compare: Compare = True,
    repeat: Repeat = 1,
) -> None:
    """Kill -9 of the task manager that holds the state: time to the first output and to caught up, losses."""

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import recovery as benchmark

        options = benchmark.RecoveryOptions(
            state=check_state(state),
            state_bytes=state_bytes,
            payload_bytes=payload_bytes,
            rate=rate,
            duration_s=duration_s,
            settle_s=settle_s,
            before_s=before_s,
            change_share=change_share,
            compare=compare,
            repeat=repeat,
        )
        return benchmark.run(options, report).as_json()

    execute(measure, json)


@app.command("report")
def write_report(
    results: Annotated[Path, typer.Option(help="Directory of the JSON files.")] = RESULTS_DIRECTORY,
    page: Annotated[Path, typer.Option(help="Page whose tables are made anew.")] = Path(
        "docs/performance.md"
    ),
) -> None:
    """Write the tables of docs/performance.md from the JSON files."""

    def main() -> int:
        from benchmarks.report import update_page

        count = update_page(page, results)
        print(f"{page}: tables of {count} results")
        return 0

    run_command("benchmarks", main)


if __name__ == "__main__":
    app(prog_name="python -m benchmarks")
