"""Analyse latency files with Spark; ``python plot.py --help`` tells how. The code is in ``workload/``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from weir.spark.session import DEFAULT_MASTER
from workload.entry import ERROR_CONSOLE, one_line_errors
from workload.plotting import plot
from workload.report import phases_table, summary_table

#: Of the table where the width of a terminal is not known.
TABLE_COLUMNS = 120

EPILOG = """
Examples:

\b
python plot.py zout/latest.txt --out plots/
python plot.py zout/local.txt zout/hybrid.txt --out plots/compared --title "local and hybrid"
python plot.py zout/ --out plots/ --cut-warmup-s 5 --overwrite
"""

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(epilog=EPILOG)
def main(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Latency files (lines arrival_epoch_ms,latency_ms) or directories of *.txt.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Directory for the pictures and summary.json.")] = Path("plots"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace earlier results in OUT.")] = False,
    cut_warmup_s: Annotated[
        float, typer.Option(help="Leave out events that arrive in so many seconds after the first.")
    ] = 0.0,
    title: Annotated[str | None, typer.Option(help="Added to the headings of the pictures.")] = None,
    master: Annotated[
        str, typer.Option(help="Spark master: local[N], local[*], spark://host:port, yarn, k8s://...")
    ] = DEFAULT_MASTER,
) -> None:
    """Print a table of latency percentiles and throughput, and draw both over time."""
    with one_line_errors("plot.py"):
        analyses, written = plot(
            files,
            out,
            overwrite=overwrite,
            cut_warmup_s=cut_warmup_s,
            title=title,
            master=master,
            console=ERROR_CONSOLE,
        )
    # In a file or a pipe nothing is gained by breaking lines at 80 columns.
    console = Console(width=None if sys.stdout.isatty() else TABLE_COLUMNS)
    console.print(summary_table(analyses))
    phases = phases_table(analyses)
    if phases is not None:
        console.print()
        console.print(phases)
    for path in written:
        typer.echo(path)


if __name__ == "__main__":
    app()
