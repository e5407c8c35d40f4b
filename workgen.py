"""Generate a workload with Spark; ``python workgen.py --help`` tells how. The code is in ``workload/``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weir.spark.session import DEFAULT_MASTER
from workload.entry import ERROR_CONSOLE, one_line_errors
from workload.generate import generate
from workload.parameters import (
    START_MS_DEFAULT,
    Distribution,
    FileFormat,
    Schema,
    WorkloadParameters,
)

EPILOG = """
Examples:

\b
python workgen.py --events 1000000 --keys 100000 --out data/events
python workgen.py --events 10000000 --distribution zipf --exponent 1.2 --out data/skewed
python workgen.py --events 1000000 --event-rate 5000 --disorder-ms 2000 --out data/late
python workgen.py --events 100000 --schema wikipedia --format parquet --out data/wiki
"""

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(epilog=EPILOG)
def main(
    events: Annotated[int, typer.Option(help="Number of events (rows).")],
    out: Annotated[Path, typer.Option(help="Directory to make; part files and _workload.json go there.")],
    keys: Annotated[int, typer.Option(help="Number of keys: server-1 to server-KEYS, or pages.")] = 100_000,
    schema: Annotated[
        Schema, typer.Option(help="server: id (1 to 100) and server_name; wikipedia: recent changes.")
    ] = Schema.SERVER,
    file_format: Annotated[
        FileFormat, typer.Option("--format", help="JSON lines or Parquet.")
    ] = FileFormat.JSONL,
    distribution: Annotated[
        Distribution, typer.Option(help="How often each key occurs; zipf: key 1 most often.")
    ] = Distribution.UNIFORM,
    exponent: Annotated[float, typer.Option(help="Zipf exponent: key k has weight k^-EXPONENT.")] = 1.1,
    payload_bytes: Annotated[
        int, typer.Option(help="Add a field payload of so many random hexadecimal characters.")
    ] = 0,
    event_time: Annotated[
        bool, typer.Option("--event-time", help="Add event_time (ms since epoch) to the server schema.")
    ] = False,
    event_rate: Annotated[
        float | None,
        typer.Option(help="Events per second of event time (default 10000); implies --event-time."),
    ] = None,
    disorder_ms: Annotated[
        int, typer.Option(help="Set event times back by a uniform 0 to so many ms; implies --event-time.")
    ] = 0,
    start_ms: Annotated[int, typer.Option(help="Event time of the first event.")] = START_MS_DEFAULT,
    seed: Annotated[
        int, typer.Option(help="The same seed gives the same rows, however many partitions.")
    ] = 42,
    partitions: Annotated[
        int | None, typer.Option(help="Number of part files (default: one per million events, 4 to 256).")
    ] = None,
    master: Annotated[
        str, typer.Option(help="Spark master: local[N], local[*], spark://host:port, yarn, k8s://...")
    ] = DEFAULT_MASTER,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace an earlier workload in OUT; other files are left alone."),
    ] = False,
) -> None:
    """Generate events with Spark, reproducibly: each row depends only on the seed and its number.

    A line of the default schema is {"id": 7, "server_name": "server-123"}.
    """
    with one_line_errors("workgen.py"):
        parameters = WorkloadParameters(
            events=events,
            keys=keys,
            schema=schema,
            file_format=file_format,
            distribution=distribution,
            exponent=exponent,
            payload_bytes=payload_bytes,
            event_time=event_time or event_rate is not None,
            disorder_ms=disorder_ms,
            event_rate=10_000.0 if event_rate is None else event_rate,
            start_ms=start_ms,
            seed=seed,
            partitions=partitions,
        )
        facts = generate(parameters, out, master=master, overwrite=overwrite, console=ERROR_CONSOLE)
    typer.echo(
        f"{facts.rows:,} rows, {facts.size_bytes:,} bytes in {facts.part_count} parts"
        f" in {facts.write_s:.1f} s: {out}"
    )


if __name__ == "__main__":
    app()
