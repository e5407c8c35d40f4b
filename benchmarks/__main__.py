"""``python -m benchmarks NAME``: run one benchmark, print a table, write JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.commands import app
from weir.process.entry_point import run as run_command

RESULTS_DIRECTORY = Path("benchmarks/results")


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
