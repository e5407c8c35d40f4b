"""What the demo writes to the terminal: numbered steps with times, live progress, and the closing table."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

#: Where there is no terminal, a running step writes a line this often.
_LINE_EVERY_S = 5.0
#: The live rate is that of the last so many seconds.
_RATE_WINDOW_S = 1.0
#: The Spark scripts end their lines on progress with the time; the display has a clock of its own.
_SECONDS_AT_END = re.compile(r"\s*\(\d+ s\)$")
_LOG_END_BYTES = 4096
#: Commands go on in another line after so many characters.
_COMMAND_COLUMNS = 85
#: Rows that take no longer are in time.
_IN_TIME_MS = 250.0


class Display:
    """Writes the steps of a run; one at a time."""

    def __init__(self, console: Console, step_count: int) -> None:
        self.console = console
        self._step_count = step_count
        self._step_number = 0

    def line(self, text: str = "", style: str | None = None) -> None:
        """Write one line as it is, without reading markup into it."""
        self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def step(self, title: str, explanation: str) -> None:
        """Announce the next step."""
        self._step_number += 1
        self.line()
        self.console.print(
            f"[bold]{self._step_number}/{self._step_count} {title}[/bold]  {explanation}", highlight=False
        )

    def command(self, *arguments: object) -> None:
        """Show a command that does the same by hand; each argument stays on one line, with what belongs to it."""
        lines = [""]
        for argument in map(str, arguments):
            if lines[-1] and len(lines[-1]) + len(argument) > _COMMAND_COLUMNS:
                lines.append("   ")
            lines[-1] = f"{lines[-1]} {argument}" if lines[-1] else argument
        self.line("    $ " + " \\\n    ".join(lines), "cyan")

    def done(self, text: str, started_s: float) -> None:
        """Close a step: what came out, and how long it took."""
        self.console.print(
            f"    [green]done[/green] in {time.monotonic() - started_s:.1f} s: {text}", highlight=False
        )

    @contextmanager
    def live(self, text: str, total: int | None = None) -> Iterator[Callable[[str, int], None]]:
        """Show that something goes on.

        Args:
            text: what, until the first update.
            total: of the bar; None: no bar.

        Yields:
            A function to call with a text and the part of ``total`` that is done, as often as one likes.
        """
        if not self.console.is_terminal:
            yield self._plain_updates(text, total)
            return
        columns = [TextColumn("   "), SpinnerColumn(), TextColumn("{task.description}")]
        if total is not None:
            columns += [BarColumn(bar_width=20), TextColumn("{task.percentage:>3.0f} %")]
        with Progress(*columns, TimeElapsedColumn(), console=self.console, transient=True) as progress:
            task = progress.add_task(text, total=total)
            yield lambda text, done: progress.update(task, description=text, completed=done)

    def _plain_updates(self, text: str, total: int | None) -> Callable[[str, int], None]:
        self.line(f"    {text}")
        next_s = time.monotonic() + _LINE_EVERY_S

        def update(text: str, done: int) -> None:
            nonlocal next_s
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + _LINE_EVERY_S
                self.line(f"    {text}" + (f" {100 * done / total:.0f} %" if total else ""))

        return update


class JobProgress:
    """Turns each ``/status`` into a line: how many events are in, and how many per second just now."""

    def __init__(self, update: Callable[[str, int], None]) -> None:
        self._update = update
        self._samples: deque[tuple[float, int]] = deque()

    def __call__(self, status: Mapping[str, Any]) -> None:
        """Show a status; called for each one."""
        state, events_in = status["state"], status["totals"]["events_in"]
        if not events_in:
            self._update(status["waiting_for"] or status["state_meaning"], 0)
            return
        now_s = time.monotonic()
        self._samples.append((now_s, events_in))
        while now_s - self._samples[0][0] > _RATE_WINDOW_S and len(self._samples) > 2:
            self._samples.popleft()
        first_s, first_events = self._samples[0]
        # Until there are two looks, the job's own average is all that is known.
        rate = status["totals"]["events_per_second"]
        if now_s - first_s >= _RATE_WINDOW_S / 2:
            rate = (events_in - first_events) / (now_s - first_s)
        self._update(f"{state.lower()}: {events_in:>9,} events in, {rate:>9,.0f} events/s", events_in)


def last_line(log_path: Path) -> str:
    """The last line on its progress that a script wrote to its log, without its clock; empty when there is none."""
    with log_path.open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_END_BYTES))
        lines = log.read().decode(errors="replace").split("\n")
    # What follows the last line break may be half a line.
    shown = [_SECONDS_AT_END.sub("", line) for line in lines[:-1] if _SECONDS_AT_END.search(line)]
    return shown[-1] if shown else ""


def closing_table(flat_out: Mapping[str, Any], paced: Mapping[str, Any], rate: float) -> Table:
    """The table of what both runs did.

    Args:
        flat_out: ``totals`` of the last ``/status`` of the run without a rate.
        paced: the same of the paced run.
        rate: of the paced run, in events per second.
    """
    table = _table()
    table.add_column("")
    table.add_column("flat out", justify="right", no_wrap=True)
    table.add_column(f"at {rate:,.0f}/s", justify="right", no_wrap=True)
    table.add_column("what it says", style="dim")
    counts = (
        ("events in", "events_in", "read by the source"),
        ("events out", "events_out", "reached the sink: those with id % 4 != 0"),
        ("distinct keys", "distinct_keys", "server names, each with its count in RocksDB"),
    )
    for name, key, note in counts:
        table.add_row(name, f"{flat_out[key]:,}", f"{paced[key]:,}", note)
    rates = [f"{totals['events_per_second']:,.0f}/s" for totals in (flat_out, paced)]
    table.add_row("throughput", *rates, "events in, from the first batch to the last")
    return table


def phases_table(phases: Mapping[str, Mapping[str, float]]) -> Table:
    """The latencies of the paced run before, during and after its rescale, as ``summary.json`` has them."""
    table = _table()
    table.add_column("paced run")
    for heading in ("before", "scaling", "after"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("what it says", style="dim")
    notes = {
        "p50": "half of the events took at most so long,",
        "p95": "from the time they were due at the source",
        "p99": "to their arrival at the sink;",
        "max": "scaling: until the rescale is complete",
    }
    for name, note in notes.items():
        cells = [
            f"{phases[phase][f'{name}_ms']:,.1f} ms" if phase in phases else "-"
            for phase in ("before", "during", "after")
        ]
        table.add_row(f"latency {name}", *cells, note)
    return table


def what_one_sees(phases: Mapping[str, Mapping[str, float]]) -> str:
    """Return one sentence about these latencies; "" where no row came before the rescale, or none after it."""
    if not {"before", "after"} <= phases.keys():
        return ""
    before_s, after_s = phases["before"]["max_ms"] / 1e3, phases["after"]["p50_ms"] / 1e3
    if max(phase["max_ms"] for phase in phases.values()) < _IN_TIME_MS:
        return "all rows came in time, before, during and after the rescale"
    if after_s < before_s:
        return (
            f"one subtask was too slow, so that rows came up to {before_s:.1f} s late; with a second one half of them "
            f"took at most {after_s:.2f} s"
        )
    return (
        f"rows came late with a second subtask, too, half of them by {after_s:.1f} s: other programs use this "
        "machine's processors; see the demo again when they have ended"
    )


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
