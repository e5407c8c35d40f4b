"""What the engine does in a second, and what a row waits for."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from benchmarks.command_line import (
    CorpusName,
    Json,
    Keys,
    Parallelism,
    PayloadCompression,
    PayloadTexts,
    Repeat,
    Report,
    SinkName,
    TaskManagers,
    execute,
)
from benchmarks.commands.application import app
from benchmarks.results import write_json
from weir.process.entry_point import run as run_command


@app.command()
def throughput(
    json: Json = None,
    input: Annotated[CorpusName, typer.Option(help="What the lines look like.")] = "flat",
    events: Annotated[
        int | None,
        typer.Option(min=1, help="Events of one run (millions: flat 10, csv 8, parquet 24, others 1)."),
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
    texts: Annotated[PayloadTexts, typer.Option(help="Parquet: what the payload is.")] = "letters",
    compression: Annotated[PayloadCompression, typer.Option(help="Parquet: of the files.")] = "snappy",
) -> None:
    """Events per second of the whole engine with durable state, beside batch queries on the same input."""
    if input == "parquet":
        _payload_throughput(json, events or 24_000_000, repeat, texts, compression)
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


def _payload_throughput(
    json: Path | None, events: int, repeat: int, texts: str, compression: PayloadCompression
) -> None:
    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import payload_throughput as benchmark

        return benchmark.run(benchmark.PayloadOptions(events, repeat, texts, compression), report).as_json()

    execute(measure, json)


@app.command()
def kafka(
    json: Json = None,
    events: Annotated[int, typer.Option(min=1, help="Records of the topic.")] = 2_000_000,
    keys: Keys = 100_000,
    repeat: Repeat = 3,
    chaos: Annotated[
        bool,
        typer.Option("--chaos", help="Instead: from Kafka to Kafka while processes and brokers are killed."),
    ] = False,
    seconds: Annotated[float, typer.Option(min=1, help="With --chaos: how long faults come.")] = 600,
    every_s: Annotated[
        float, typer.Option(min=0.5, help="With --chaos: between two faults, on average.")
    ] = 5,
    seed: Annotated[int, typer.Option(help="With --chaos: of the faults.")] = 1,
    rate: Annotated[int, typer.Option(min=1, help="With --chaos: records per second.")] = 1000,
) -> None:
    """Records of a real Kafka, counted by key, beside the client library alone; needs Java and Maven."""

    def measure(report: Report) -> dict[str, Any]:
        if chaos:
            from benchmarks import kafka_chaos

            options = kafka_chaos.KafkaChaosOptions(seconds, every_s, seed, rate)
            return kafka_chaos.run(options, report).as_json()
        from benchmarks import kafka_throughput as benchmark

        return benchmark.run(benchmark.KafkaOptions(events, keys, repeat), report).as_json()

    execute(measure, json)


@app.command()
def wal(
    json: Json = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Of each case.")] = 5,
    repeat: Repeat = 3,
    only: Annotated[
        list[str] | None,
        typer.Option(help='Cases whose name has this, such as "send_many, words"; may be repeated.'),
    ] = None,
    with_kafka: Annotated[
        bool, typer.Option("--kafka/--no-kafka", help="Run a real Kafka, too; needs Java and Maven.")
    ] = True,
    list_cases: Annotated[
        bool, typer.Option("--cases", help="Print the names of all cases, and end.")
    ] = False,
    disk: Annotated[
        Path | None, typer.Option(help="Directory for the cases on disk and the recovery (default: TMPDIR).")
    ] = None,
    recovery_bytes: Annotated[
        float, typer.Option(min=1e6, help="Segments of the broker in --only recovery.")
    ] = 10e9,
    csv: Annotated[Path | None, typer.Option(help="Write a line per case and run to this file.")] = None,
    pictures: Annotated[
        Path | None, typer.Option(help="Draw the file of --csv into this directory, by Spark.")
    ] = None,
    draw_only: Annotated[
        bool, typer.Option("--draw-only", help="Draw an earlier file of --csv, and run nothing.")
    ] = False,
) -> None:
    """A write-ahead log sent to three brokers: ours and a real Kafka's, in turn; acknowledged bytes only.

    Without --only, all cases, a failover and a reader are run: about half an hour. `--only recovery` fills a broker
    with 10 GB and kills it.
    """
    if list_cases:
        from benchmarks.wal.cases import CASES, TRIALS

        print(*(case.name for case in CASES), *TRIALS, sep="\n")
        return
    if pictures is not None and csv is None:
        raise typer.BadParameter("--pictures needs --csv: what is in that file is drawn")

    def draw() -> int:
        if csv is not None and pictures is not None:
            from workload.log_pictures import draw_log_pictures

            print(*draw_log_pictures(csv, pictures), sep="\n")
        return 0

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks.wal import run as benchmark
        from benchmarks.wal.document import write_csv

        options = benchmark.WalOptions(seconds, repeat, only or (), with_kafka, disk, recovery_bytes)

        def save(document: dict[str, Any]) -> None:
            # After each round, so that a run that is cut off does not lose those before.
            if csv is not None:
                write_csv(csv, document)
            if json is not None:
                write_json(json, {**document, "is_whole": False})

        document = benchmark.run(options, report, save)
        if csv is not None:
            write_csv(csv, document)
            draw()
        return document

    if draw_only:
        run_command("benchmarks", draw)
    execute(measure, json, _wal_cases)


def _wal_cases(document: dict[str, Any]) -> Table:
    from benchmarks.wal.document import cases_table

    return cases_table(document)


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
    gather_ms: Annotated[int, typer.Option(min=0, max=1000, help="taskManager.gather_ms.")] = 25,
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
            gather_ms,
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


@app.command("watermark_lag")
def watermark_lag(
    json: Json = None,
    rate: Annotated[float, typer.Option(min=1, help="Events per second, open loop.")] = 10_000,
    duration_s: Annotated[float, typer.Option(min=8, help="Length of a run.")] = 20,
    out_of_orderness_ms: Annotated[int, typer.Option(min=0, help="Of the source's watermark.")] = 0,
    repeat: Repeat = 3,
    parallelism: Parallelism = 2,
    task_managers: TaskManagers = 2,
) -> None:
    """How far the watermark at the sink is behind the clock, less the out-of-orderness, over five stages."""

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import watermark_lag as benchmark

        options = benchmark.LagOptions(
            rate, duration_s, out_of_orderness_ms, repeat, parallelism, task_managers
        )
        return benchmark.run(options, report).as_json()

    execute(measure, json)


@app.command()
def nexmark(
    json: Json = None,
    query: Annotated[
        list[str] | None, typer.Option(help="Name of a query, such as q1; may be repeated. All if not given.")
    ] = None,
    events: Annotated[
        int, typer.Option(min=0, help="People, auctions and bids of a run. 0: enough for each query.")
    ] = 0,
    repeat: Repeat = 1,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare/--no-compare", help="Compare each result with Spark SQL's, which needs Java."
        ),
    ] = True,
    chaos: Annotated[
        bool,
        typer.Option(
            "--chaos",
            help="Measure nothing: rescale stages and kill task managers at random, and compare the results.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Of what --chaos does.")] = 1,
) -> None:
    """Queries over an online auction: events per second, CPU, and whether the result is that of Spark SQL."""

    def measure(report: Report) -> dict[str, Any]:
        if chaos:
            from benchmarks import nexmark_chaos

            disturbed = nexmark_chaos.ChaosOptions(tuple(query or ()), seed=seed)
            if events:
                disturbed = dataclasses.replace(disturbed, events=events)
            return nexmark_chaos.run(disturbed, report).as_json()
        from benchmarks import nexmark as benchmark

        options = benchmark.NexmarkOptions(tuple(query or ()), events, repeat, compare)
        return benchmark.run(options, report).as_json()

    execute(measure, json)


@app.command()
def sql(
    json: Json = None,
    query: Annotated[list[str] | None, typer.Option(help="Of Nexmark, such as q5; all unless given.")] = None,
    events: Annotated[
        int, typer.Option(min=0, help="People, auctions and bids of a run. 0: measure nothing.")
    ] = 5_000_000,
    repeat: Repeat = 3,
    compare: Annotated[
        bool,
        typer.Option("--compare/--no-compare", help="Compare results with Spark SQL's, which needs Java."),
    ] = True,
    made_up: Annotated[int, typer.Option(min=0, help="Made-up queries that DuckDB judges.")] = 200,
    first: Annotated[
        int, typer.Option(min=0, help="Number of the first of them; above 0: no queries of files.")
    ] = 0,
    mutations: Annotated[int, typer.Option(min=0, help="Texts with mistakes.")] = 200,
    seed: Annotated[int, typer.Option(help="Of made-up queries and mistakes.")] = 1,
) -> None:
    """SQL beside the builder; results beside those of Spark SQL and DuckDB; plan time; texts with mistakes."""

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks.sql import run as benchmark

        options = benchmark.SqlOptions(
            tuple(query or ()), events, repeat, compare, made_up, first, seed, mutations
        )
        return benchmark.run(options, report).as_json()

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
def startup(json: Json = None, repeat: Repeat = 5) -> None:
    """From process start to the first event processed."""

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import start_up

        return start_up.run(repeat, report).as_json()

    execute(measure, json)


@app.command("first_run")
def first_run(json: Json = None) -> None:
    """From ``weir run`` to the first row where no kernel is compiled, and how long compiling all of them takes."""

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import first_run as benchmark

        return benchmark.run(report).as_json()

    execute(measure, json)


@app.command()
def runners(
    json: Json = None,
    events: Annotated[
        int, typer.Option(min=3, help="Bids of a larger run; a smaller one has a third.")
    ] = 3_000_000,
    repeat: Repeat = 3,
    master: Annotated[str, typer.Option(help="Of Spark.")] = "local[2]",
) -> None:
    """Three jobs on Spark, as Weir runs them there, beside the same jobs written by hand in PySpark."""

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import runners as benchmark

        return benchmark.run(benchmark.RunnersOptions(events, repeat, master), report).as_json()

    execute(measure, json)
