"""Too much, too wide, too bad."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from benchmarks.command_line import Json, Keys, Parallelism, Repeat, Report, TaskManagers, execute
from benchmarks.commands.application import app


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


@app.command("time_law")
def time_law(
    json: Json = None,
    seeds: Annotated[int, typer.Option(min=1, help="Sets of random rows.")] = 50,
    first_seed: Annotated[int, typer.Option(help="The first of them.")] = 0,
) -> None:
    """Steps that look at time, over random rows in random pieces: each says the same, whatever the pieces."""

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import time_law as benchmark

        return benchmark.run(report, seeds, first_seed).as_json()

    execute(measure, json)


@app.command("changes")
def changes(
    json: Json = None,
    cases: Annotated[int, typer.Option(min=1, help="Random changes.")] = 1_000,
    first_seed: Annotated[int, typer.Option(help="The first of them.")] = 0,
) -> None:
    """Jobs that are changed and go on from a savepoint: each right from scratch, or refused before it is touched."""

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import changes as benchmark

        return benchmark.run(report, cases, first_seed).as_json()

    execute(measure, json)


@app.command("damage")
def damage(
    json: Json = None,
    cases: Annotated[int, typer.Option(min=1, help="Damaged checkpoints.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Of what is done to them.")] = 1,
) -> None:
    """Flips, cuts and swaps in files of a checkpoint: what is restored is right, or refused with the file's name."""

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import damage as benchmark

        return benchmark.run(report, cases, seed).as_json()

    execute(measure, json)


@app.command("queries")
def queries(
    json: Json = None,
    rate: Annotated[
        float,
        typer.Option(min=0, help="Events per second of the job; 0: half of what it reaches without a rate."),
    ] = 0,
    questions: Annotated[float, typer.Option(min=1, help="Questions per second.")] = 500,
    duration_s: Annotated[float, typer.Option(min=1, help="Of each of the two phases.")] = 10,
    keys: Keys = 100_000,
    scan_keys: Annotated[
        int, typer.Option(min=0, help="Keys of the job over which scans go; 0: none.")
    ] = 1_000_000,
    parallelism: Parallelism = 2,
    task_managers: TaskManagers = 2,
) -> None:
    """Questions to running state: how quick answers are, and what they cost the job."""

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import queries as benchmark

        options = benchmark.QueryOptions(
            rate=rate,
            questions_per_s=questions,
            duration_s=duration_s,
            keys=keys,
            scan_keys=scan_keys,
            parallelism=parallelism,
            task_managers=task_managers,
        )
        return benchmark.run(options, report).as_json()

    execute(measure, json)


@app.command("face")
def face(
    json: Json = None,
    repeat: Repeat = 1,
    slowed: Annotated[int, typer.Option(min=1, help="How often a step is made three times slower.")] = 3,
    open_s: Annotated[
        float, typer.Option(min=1, help="Seconds for which the page is open, and closed.")
    ] = 15,
    turns: Annotated[int, typer.Option(min=1, help="How often it is open and closed.")] = 4,
    periods: Annotated[
        int, typer.Option(min=1, help="Periods of the sine, each an hour in six minutes.")
    ] = 2,
    tls_turns: Annotated[int, typer.Option(min=1, help="Pairs of runs with and without certificates.")] = 3,
    only: Annotated[str, typer.Option(help="page, scaling or tls; empty: all three.")] = "",
) -> None:
    """The page in a real browser, the autoscaler, and what certificates cost.

    How soon the page names a slow step, its first paint, and what it costs beside a job. How soon the autoscaler brings
    a lag back and frees slots, and how often it decides under a sine. Throughput and latency with certificates.
    """
    if only not in ("", "page", "scaling", "tls"):
        raise typer.BadParameter("--only takes page, scaling or tls")

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks import face as benchmark

        return benchmark.run(
            benchmark.FaceOptions(repeat, slowed, open_s, turns, periods, tls_turns, only), report
        ).as_json()

    execute(measure, json)
