"""Weir beside other stream processors."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from benchmarks.command_line import Json, Repeat, Report, execute
from benchmarks.commands.application import app


@app.command()
def peers(
    json: Json = None,
    only: Annotated[list[str] | None, typer.Option(help="A query, such as q5; all unless given.")] = None,
    system: Annotated[list[str] | None, typer.Option(help="flink, spark or weir; all unless given.")] = None,
    format: Annotated[
        list[str] | None, typer.Option(help="Of the files: json or parquet; both unless given.")
    ] = None,
    events: Annotated[
        int,
        typer.Option(
            min=0, help="Of the larger of two runs (q8: times 8, servers: times 4). 0: measure nothing."
        ),
    ] = 3_000_000,
    repeat: Repeat = 1,
    compared_events: Annotated[
        int,
        typer.Option(min=0, help="Of which the results of all systems are compared row by row. 0: of none."),
    ] = 300_000,
) -> None:
    """One SQL text over the same files on Flink SQL, Spark Structured Streaming and Weir, in turn.

    Needs Java and Maven, which fetches Flink's jars (250 MB) once. Speeds are slopes between a run and one of three
    times the events, so that starts cancel; per core they go by CPU time.
    """

    def measure(report: Report) -> dict[str, Any]:
        from benchmarks.peers import run as benchmark

        options = benchmark.PeersOptions(
            tuple(only or ()), tuple(system or ()), tuple(format or ()), events, repeat, compared_events
        )
        return benchmark.run(options, report).as_json()

    def table(document: dict[str, Any]) -> Any:
        from benchmarks.peers.section import overview

        return overview(document)

    execute(measure, json, table)
