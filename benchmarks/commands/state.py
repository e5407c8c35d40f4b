"""Keyed state: its speed, and what happens to it in rescales, checkpoints and recoveries."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from benchmarks.command_line import (
    ChangeShare,
    Compare,
    Json,
    Keys,
    OfferedRate,
    Parallelism,
    PayloadBytes,
    Repeat,
    Report,
    SettleS,
    StateBytes,
    TaskManagers,
    WhoseState,
    check_state,
    execute,
)
from benchmarks.commands.application import app


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
def joins(
    json: Json = None,
    state_bytes: StateBytes = 1e9,
    payload_bytes: PayloadBytes = 1024,
    rate: OfferedRate = 10_000,
    duration_s: Annotated[float, typer.Option(min=2, help="Offered after the prefill.")] = 40,
    before_s: Annotated[float, typer.Option(min=0.1, help="Measured before the disturbance.")] = 5,
    settle_s: SettleS = 3,
    events: Annotated[int, typer.Option(min=100, help="Of the throughput run.")] = 2_000_000,
    only: Annotated[
        list[str] | None, typer.Option(help="rescale, recovery or throughput; may be repeated.")
    ] = None,
    repeat: Repeat = 1,
) -> None:
    """An interval join with much state: rescaled and killed under load, nothing lost; its speed on one core."""

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import joins as benchmark

        options = benchmark.JoinOptions(
            state_bytes=state_bytes,
            payload_bytes=payload_bytes,
            rate=rate,
            duration_s=duration_s,
            settle_s=settle_s,
            before_s=before_s,
            events=events,
            parts=benchmark.check_parts(only or benchmark.PARTS),
            repeat=repeat,
        )
        return benchmark.run(options, report).as_json()

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
    s3_delay_ms: Annotated[
        float | None,
        typer.Option(
            min=0, help="Checkpoints go to an S3 server here that waits for so long with each request."
        ),
    ] = None,
    standby_replicas: Annotated[
        int, typer.Option(min=0, max=2, help="Task managers that keep the state of the one that is killed.")
    ] = 0,
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
            s3_delay_ms=s3_delay_ms,
            standby_replicas=standby_replicas,
        )
        return benchmark.run(options, report).as_json()

    execute(measure, json)


@app.command()
def windows(
    json: Json = None,
    events: Annotated[int, typer.Option(min=1, help="Rows of one run.")] = 5_000_000,
    keys: Keys = 100_000,
    events_per_s: Annotated[int, typer.Option(min=1, help="Rows of a second of event time.")] = 300_000,
    sessions: Annotated[
        bool,
        typer.Option("--sessions", help="Instead: sessions of many keys for some time, memory and disk."),
    ] = False,
    rate: Annotated[
        int, typer.Option(min=10, help="With --sessions: rows of a second of event time.")
    ] = 100_000,
    seconds: Annotated[int, typer.Option(min=10, help="With --sessions: event time of the run.")] = 60,
    gap_s: Annotated[int, typer.Option(min=1, help="With --sessions: gap that ends a session.")] = 10,
    session_keys: Annotated[int, typer.Option(min=1, help="With --sessions: number of keys.")] = 1_000_000,
    cache_mb: Annotated[
        int, typer.Option(min=1, help="With --sessions: bound of the state's cache, MiB.")
    ] = 256,
) -> None:
    """Sliding, session and tumbling windows in one subtask: CPU for each event, results and cache."""

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import sessions as session_benchmark
        from benchmarks import windows as benchmark

        if sessions:
            options = session_benchmark.SessionOptions(session_keys, rate, seconds, gap_s, cache_mb << 20)
            return session_benchmark.run(options, report)
        report("windows", 0.0)
        return benchmark.run(events, keys, events_per_s)

    execute(measure, json)


@app.command()
def cassandra(
    json: Json = None,
    events: Annotated[int, typer.Option(min=1, help="Skewed events after one of every key.")] = 5_000_000,
    keys: Keys = 1_000_000,
    cached_share: Annotated[float, typer.Option(min=0, max=1, help="Of the keys, in the cache.")] = 0.1,
    rate: OfferedRate = 20_000,
    duration_s: Annotated[float, typer.Option(min=4, help="Steady load of a kill and of a rescale.")] = 30,
    times: Annotated[int, typer.Option(min=1, help="The events so often, with a cache for all keys.")] = 80,
    state_rows: Annotated[int, typer.Option(min=1, help="Of the job with 16 operations a row.")] = 20_000,
    only: Annotated[
        list[str] | None,
        typer.Option(help="speed, full_cache, disturbed, states or ranges; may be repeated."),
    ] = None,
    repeat: Repeat = 1,
) -> None:
    """State in a real Cassandra: speed, kill -9, a rescale; needs Java and Maven."""

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import database

        parts = database.check_parts(only or database.PARTS)
        options = database.DatabaseOptions(
            events, keys, cached_share, rate, duration_s, times, state_rows, parts, repeat
        )
        return database.run(options, report).as_json()

    execute(measure, json)
