"""``make demo``: events from Spark, the demo job on real processes, flat out, then paced and scaled; all drawn."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from experiments.cluster import Cluster
from experiments.demo_display import Display, closing_table, phases_table, what_one_sees
from experiments.demo_log import run_through_the_log
from experiments.demo_paced import PICTURE, REPORT, analyse, latency_file, paced_cluster, run_paced, with_load
from experiments.demo_steps import JOB, DemoSettings, make_workload, run_flat_out
from experiments.processes import ClusterError
from weir.errors import WeirError
from weir.process.entry_point import INTERRUPTED_EXIT_CODE
from weir.questions.report import report
from weir.spark.java import find_java

EPILOG = """
Examples:

\b
python -m experiments.demo
python -m experiments.demo --rate 200 --count-load-ms 6.8 --seconds 40
python -m experiments.demo --events 20000000 --keys 1000000
python -m experiments.demo --keep
"""

_STEP_COUNT = 5

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(epilog=EPILOG)
def main(
    events: Annotated[
        int, typer.Option(min=1000, help="Size of the workload; the flat-out run reads all of it.")
    ] = 4_000_000,
    keys: Annotated[int, typer.Option(min=1, help="Number of different server names.")] = 100_000,
    rate: Annotated[float, typer.Option(min=1, help="Events per second of the paced run.")] = 400,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Length of the paced run (shorter when there are too few events).")
    ] = 20,
    count_load_ms: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="CPU of the counts for each of their events in the paced run, 3/4 of all (default: a bit too much for "
            "what one process gets of this machine now).",
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the processes of the paced run up until Ctrl-C.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Generate the workload even if it is there already.")
    ] = False,
) -> None:
    """Show what Weir does, on this machine, in a bit more than a minute.

    Spark generates a workload; a control plane and two task managers run the job server_count over it
    as fast as possible. Then one task manager runs it at a fixed rate that is a little too much for it; a second one
    is started, and the counts are scaled onto it while the job runs. Three brokers of the replicated log then carry
    events into a job and counts out of it. Spark analyses and draws the latencies.

    Writes to data/demo, zout and plots/demo below the current directory, and can be run again.
    """
    display = Display(Console(), _STEP_COUNT)
    # Spark and the job's processes end on Ctrl-C; they shall also when this is killed, or its terminal goes away.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        find_java()
        _demo(DemoSettings(events, keys, rate, seconds, count_load_ms), display, keep=keep, fresh=fresh)
    except WeirError as error:
        _fail(str(error), error.exit_code)
    except OSError as error:
        # A full disk, a directory without permission: the system's words, with the path.
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
    except KeyboardInterrupt:
        display.line("interrupted; all processes have ended")
        raise typer.Exit(INTERRUPTED_EXIT_CODE) from None


def _demo(settings: DemoSettings, display: Display, *, keep: bool, fresh: bool) -> None:
    started_s = time.monotonic()
    keys = f"{settings.keys:,} keys"
    display.line(f"Weir demo: {JOB} counts {keys} on three processes; Ctrl-C ends everything")
    display.step("Workload", f"{settings.events:,} events over {keys}, made by Spark")
    make_workload(settings, display, fresh=fresh)
    display.step("Flat out", "all events as fast as possible; every stage in 2 subtasks")
    flat_out = run_flat_out(settings, display)
    display.step(
        "Paced and scaled",
        f"{settings.paced_events:,} events at {settings.rate:,.0f} per second, late or not",
    )
    with ExitStack() as stack:
        settings = with_load(settings, display)
        cluster = stack.enter_context(paced_cluster())
        paced, _ = run_paced(settings, display, cluster)
        REPORT.parent.mkdir(parents=True, exist_ok=True)
        report(f"localhost:{cluster.http_port}", REPORT)
        if not keep:
            cluster.stop()
        display.step("Log to log", "events from the replicated log to the replicated log, without a Kafka")
        through_the_log = run_through_the_log(display)
        display.step("Analysis", "latency of the paced run, by Spark")
        latency = analyse(settings, display)
        display.line()
        display.console.print(closing_table(flat_out, paced, settings.rate))
        display.line()
        display.console.print(phases_table(latency["phases"]))
        display.line()
        if sentence := what_one_sees(latency["phases"]):
            display.line(f"what you see  {sentence}")
        display.line(f"log to log    {through_the_log}")
        display.line(f"latency file  {latency_file()}")
        display.line(f"plot          {PICTURE}")
        display.line(f"report        {REPORT.absolute().as_uri()}")
        display.line(f"all of it     {time.monotonic() - started_s:.0f} s")
        if keep:
            _wait_for_interrupt(cluster, display)


def _wait_for_interrupt(cluster: Cluster, display: Display) -> None:
    page = f"http://localhost:{cluster.http_port}"
    display.line(f"\nThe processes are still up; Ctrl-C ends them. See {page}/", "cyan")
    try:
        while all(process.alive() for process in cluster.processes.values()):
            time.sleep(1.0)
    except KeyboardInterrupt:
        display.line("ending the processes")
        return
    raise ClusterError(f"a process ended by itself\n{cluster.logs()}")


def _fail(message: str, exit_code: int) -> NoReturn:
    """One line that says what went wrong, then the end of the log that shows it."""
    console = Console(stderr=True, soft_wrap=True)
    reason, _, log = message.partition("\n")
    console.print(f"demo: error: {reason}", style="red", markup=False, highlight=False)
    if log:
        console.print(log, markup=False, highlight=False)
    raise typer.Exit(exit_code)


if __name__ == "__main__":
    app(prog_name="python -m experiments.demo")
