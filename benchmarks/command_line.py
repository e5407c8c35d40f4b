"""What the commands of ``python -m benchmarks`` share: options, progress, and what becomes of a result."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.results import BenchmarkError, result_table, what_is_wrong, write_json
from benchmarks.sustained import not_judged
from weir.errors import ConfigError
from weir.process.entry_point import run as run_command

Json = Annotated[Path | None, typer.Option("--json", help="Write the result to this file.")]
Repeat = Annotated[int, typer.Option(min=1, help="Runs; medians are reported.")]
Keys = Annotated[int, typer.Option(min=1, help="Number of different keys.")]
Parallelism = Annotated[int, typer.Option(min=1, help="Subtasks of each stage.")]
TaskManagers = Annotated[int, typer.Option(min=1, help="Task manager processes.")]
StateBytes = Annotated[float, typer.Option(min=1, help="Payloads in the state, as 1e9.")]
PayloadBytes = Annotated[int, typer.Option(min=16, help="Payload of one key.")]
OfferedRate = Annotated[float, typer.Option(min=1, help="Events per second, open loop.")]
SettleS = Annotated[float, typer.Option(min=0, help="Not measured, after the prefill.")]
ChangeShare = Annotated[
    float, typer.Option(min=1e-6, max=1, help="Part of the state that changes between checkpoints.")
]
WhoseState = Annotated[
    str,
    typer.Option(
        "--state", help="Who counts: count (built in), user (a KeyedProcess of batches) or user-records."
    ),
]
Compare = Annotated[
    bool, typer.Option("--compare/--no-compare", help="Run with a tenth of the state too, for the ratio.")
]
#: What ``--state`` takes.
STATES = ("count", "user", "user-records")
Report = Callable[[str, float], None]
CorpusName = Literal["flat", "wikipedia", "github", "logs", "numbers", "wide", "texts", "csv", "parquet"]
PayloadTexts = Literal["letters", "hexadecimal", "words", "json"]
PayloadCompression = Literal["snappy", "zstd", "lz4", "gzip", "uncompressed"]
SinkName = Literal["parquet", "csv", "json_lines", "delta"]

_console = Console(stderr=True)
#: Nothing is wrong, but the machine was too slow or too busy to say anything of the engine.
_NOT_JUDGED_EXIT_CODE = 4


def check_state(name: str) -> str:
    """What was given as ``--state``.

    Raises:
        ConfigError: there is no such one.
    """
    if name not in STATES:
        raise ConfigError(f"--state {name}: there are {', '.join(STATES)}")
    return name


@contextmanager
def _progress() -> Iterator[Report]:
    """A bar on a terminal, a line for each new step elsewhere."""
    if not _console.is_terminal:
        last = ""

        def line(step: str, done: float) -> None:
            nonlocal last
            if step != last:
                last = step
                print(f"  {step}", file=sys.stderr, flush=True)

        yield line
        return
    columns = [TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=_console, transient=True) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda step, done: progress.update(task, description=step, completed=min(done, 1.0))


def execute(
    measure: Callable[[Report], dict[str, Any]],
    path: Path | None,
    more: Callable[[dict[str, Any]], Table] | None = None,
) -> None:
    """Run a benchmark, show and write its result, end the process: with exit code 1 where a result is wrong.

    And with 4 where the machine was too slow to judge something.

    Args:
        measure: returns the result's document.
        path: of the file; None: none is written.
        more: makes a table of what the usual one leaves out, which is shown above it.
    """

    def main() -> int:
        with _progress() as report:
            document = measure(report)
        document["command"] = _command_line()
        if more is not None:
            Console().print(more(document))
        Console().print(result_table(document))
        if path is not None:
            write_json(path, document)
            print(f"written to {path}")
        wrong = what_is_wrong(document)
        if wrong:
            raise BenchmarkError(f"the result is wrong: {wrong}; its figures mean nothing")
        if failed := document.get("failed"):
            what = "; ".join(f"{name}: {why}" for name, why in failed.items())
            raise BenchmarkError(f"{len(failed)} of the parts failed, and the others are as shown: {what}")
        unknown = not_judged(document)
        if unknown:
            print(f"not judged: this machine does not keep up; {unknown}", file=sys.stderr)
            return _NOT_JUDGED_EXIT_CODE
        return 0

    run_command("benchmarks", main)


def _command_line() -> str:
    arguments = sys.argv[1:]
    kept = []
    skip = False
    for argument in arguments:
        if skip or argument.startswith("--json="):
            skip = False
        elif argument == "--json":
            skip = True
        else:
            kept.append(argument)
    return shlex.join(["python", "-m", "benchmarks", *kept])
