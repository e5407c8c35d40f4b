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
    docs: Annotated[Path, typer.Option(help="Directory of these pages.")] = Path("docs"),
) -> None:
    """Write the tables of docs/performance.md, measurements.md and log-beside-kafka.md from the JSON files."""

    def main() -> int:
        from benchmarks.peers.section import peers_section
        from benchmarks.report import PEERS, headlines, tables, update_page
        from benchmarks.wal.conclusions import log_section

        pages = {
            "performance.md": headlines,
            "measurements.md": tables,
            "log-beside-kafka.md": log_section,
        }
        for page, content in pages.items():
            count = update_page(docs / page, results, content)
            print(f"{docs / page}: tables of {count} results")
        update_page(docs / "performance.md", results, peers_section, PEERS)
        return 0

    run_command("benchmarks", main)


if __name__ == "__main__":
    app(prog_name="python -m benchmarks")
