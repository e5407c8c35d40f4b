"""``python -m experiments``: latency experiments and the soak of rescales on real processes; simulated recoveries."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from experiments import matrix
from experiments.workflows.command_line import app as workflows_app
from weir.errors import ConfigError, WeirError
from weir.process.entry_point import run as run_command

_EPILOG = """
Examples:

\b
python -m experiments run seeds --out zout/
python -m experiments run predecessor --out zout/ --only local3 --only hybrid5
python -m experiments report
python plot.py zout/ --out plots/ --overwrite
python -m experiments soak --rescales 200
python -m experiments soak --rescales 50 --strategy hybrid
python -m experiments chaos --minutes 20 --every-s 5
python -m experiments chaos --minutes 5 --set taskManager.useRelink=true --set controlPlane.standby_replicas=1
python -m experiments log-chaos --faults 100
python -m experiments log-chaos --faults 100 --only kill-leader
python -m experiments fuzz --inputs 100000
python -m experiments page --out docs/images
python -m experiments simulate --seeds 5000
python -m experiments simulate --seed 17
python -m experiments simulate --check-fences
python -m experiments workflows --help
"""

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, epilog=_EPILOG)


@app.callback()
def _describe() -> None:
    """Rescales of running jobs: latency around them with the same work and rate, and exact results after many."""
    # The processes of a run end on Ctrl-C; they shall also when this is killed, or its terminal goes away.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


app.add_typer(workflows_app, name="workflows")


@app.command()
def run(
    set_name: Annotated[str, typer.Argument(metavar="SET", help=f"One of: {', '.join(matrix.SETS)}.")],
    out: Annotated[Path, typer.Option(help="Directory of the latency files.")] = Path("zout"),
    only: Annotated[list[str] | None, typer.Option(help="Names of configurations; all of the set.")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Repetitions of each configuration.")] = 3,
    events: Annotated[int, typer.Option(min=20, help="Recorded events of the source.")] = 1000,
    warm_up_s: Annotated[float, typer.Option(min=0, help="Seconds before them that are cut off.")] = 3.0,
    scale_after_s: Annotated[float, typer.Option(min=0, help="Request, after the warm-up.")] = 3.0,
    keys: Annotated[int, typer.Option(min=1, help="Number of different server names.")] = 100,
    idle_timeout_s: Annotated[
        float,
        typer.Option(min=0, help="Wait so long for an idle machine, and repeat disturbed runs; 0: do not."),
    ] = 0,
) -> None:
    """Run configurations and write NAME.txt with a sidecar NAME.json for each; about 15 minutes for all."""

    def main() -> int:
        from experiments.matrix_run import RunSettings, run_matrix

        if set_name not in matrix.SETS:
            raise ConfigError(f"there is no set {set_name!r}; there are {', '.join(matrix.SETS)}")
        names = [item.name for item in matrix.configurations(set_name)]
        for name in only or ():
            if name not in names:
                raise ConfigError(f"--only {name}: set {set_name} has {', '.join(names)}")
        began_s = time.monotonic()
        settings = RunSettings(events, warm_up_s, scale_after_s, repeat, keys, idle_timeout_s)
        paths = run_matrix(
            matrix.configurations(set_name, only or ()), settings, out, lambda line: print(line, flush=True)
        )
        print(
            f"{len(paths)} results in {out}, {time.monotonic() - began_s:.0f} s; python plot.py {out} draws them"
        )
        return 0

    run_command("experiments", main)


@app.command()
def soak(
    rescales: Annotated[int, typer.Option(min=1, help="Random rescales with each strategy.")] = 200,
    strategy: Annotated[list[str] | None, typer.Option(help="Only these; all if absent.")] = None,
    rate: Annotated[int, typer.Option(min=1, help="Events per second.")] = 4000,
    interval_s: Annotated[float, typer.Option(min=0.1, help="From one request to the next, at least.")] = 3.0,
    task_managers: Annotated[int, typer.Option(min=1, help="Task manager processes.")] = 3,
    seed: Annotated[int, typer.Option(help="Of the events and of the rescales.")] = 1,
    out: Annotated[Path, typer.Option(help="Directory of events, results and logs.")] = Path("data/soak"),
) -> None:
    """Rescale all stages of a job at random under load; fail if a result is wrong or memory grows."""

    def main() -> int:
        from experiments.soak import GROWTH_BYTES_MAX, STRATEGIES, SoakSettings, run_soak

        chosen = strategy or list(STRATEGIES)
        for name in chosen:
            if name not in STRATEGIES:
                raise ConfigError(f"--strategy {name}: there are {', '.join(STRATEGIES)}")
        settings = SoakSettings(rescales, rate, interval_s, task_managers, seed)
        results = [run_soak(out, name, settings, lambda line: print(line, flush=True)) for name in chosen]
        for result in results:
            print(
                f"{result.strategy}: {result.rescales} rescales, slowest {result.slowest_s:.2f} s, "
                f"{result.groups_moved} groups and {result.bytes_moved / 1e6:.1f} MB moved; memory grew by at most "
                f"{result.growth_bytes / 1e6:.1f} MB; {result.events_left} events left for the end; "
                f"counts right, digest {result.digest}"
            )
        differ = len({result.digest for result in results}) > 1
        grew = [result.strategy for result in results if result.growth_bytes > GROWTH_BYTES_MAX]
        if differ:
            print("error: the final counts of the strategies differ")
        if grew:
            print(f"error: memory grew by more than {GROWTH_BYTES_MAX / 1e6:.0f} MB with {', '.join(grew)}")
        return 1 if differ or grew else 0

    run_command("experiments", main)


@app.command()
def chaos(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long faults come.")] = 20.0,
    every_s: Annotated[float, typer.Option(min=0.5, help="From one fault to the next, on average.")] = 5.0,
    seed: Annotated[int, typer.Option(help="Of the events and of the faults.")] = 1,
    rate: Annotated[int, typer.Option(min=1, help="Events per second.")] = 2000,
    task_managers: Annotated[int, typer.Option(min=3, help="Task manager processes.")] = 3,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Of the configuration.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory of events, output, state and logs.")] = Path(
        "data/chaos"
    ),
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the result here.")] = None,
) -> None:
    """Kill, pause, cut off, fill disks, rescale, at random; fail if a row is lost, doubled or out of order."""

    def main() -> int:
        from experiments.chaos import ChaosSettings, run_chaos

        keys = tuple(settings or ())
        for key in keys:
            if "=" not in key:
                raise ConfigError(f"--set {key}: write KEY=VALUE, such as taskManager.useRelink=true")
        chaos_settings = ChaosSettings(minutes * 60, every_s, seed, rate, task_managers, keys)
        try:
            result = run_chaos(out, chaos_settings, lambda line: print(line, flush=True))
        except WeirError:
            print(f"failed; logs and output stay in {out}; once more: {chaos_settings.command()} --out {out}")
            raise
        print("\n".join(result.table()))
        if json_path is not None:
            json_path.parent.mkdir(parents=True, exist_ok=True)
            json_path.write_text(json.dumps(result.to_json(), indent=1) + "\n")
        for what in result.grown:
            print(f"error: it grew: {what}")
        return 1 if result.grown else 0

    run_command("experiments", main)


@app.command("log-chaos")
def log_chaos(
    faults: Annotated[int, typer.Option(min=1, help="How many, one after the other.")] = 100,
    seed: Annotated[int, typer.Option(help="Of the faults.")] = 1,
    only: Annotated[
        str, typer.Option(metavar="FAULT", help="Only this one, such as kill-leader (default: all of them).")
    ] = "",
    lease_ms: Annotated[
        int, typer.Option(min=50, help="A broker that is silent for so long is lost; more on a busy machine.")
    ] = 1000,
    out: Annotated[Path, typer.Option(help="Directory of data and logs; made anew.")] = Path(
        "data/log_chaos"
    ),
) -> None:
    """Kill, pause and cut off brokers of the replicated log under load; fail if anything acknowledged is not there.

    Every record is read back once, in order, from a reader and from each replica; what other clients have seen
    meanwhile must be linearizable. About three seconds a fault.
    """

    def main() -> int:
        from experiments.log_chaos import FAULTS, run_chaos

        names = [each.replace(" ", "-") for each in FAULTS]
        if only and only not in names:
            raise ConfigError(f"--only {only}: there is no such fault; there are {', '.join(names)}")
        if out.exists() and any(out.iterdir()):
            raise ConfigError(f"--out {out} is not empty: remove it, or name another directory")
        began_s = time.monotonic()
        result = run_chaos(
            out, faults, seed, lambda line: print(line, flush=True), only.replace("-", " "), lease_ms
        )
        for name, gaps_s in result.gaps_s.items():
            if gaps_s:
                print(
                    f"{name}: {len(gaps_s)} times, without an answer for {median(gaps_s) * 1000:.0f} ms in the "
                    f"median and {max(gaps_s) * 1000:.0f} ms at most; {sum(gap > 1 for gap in gaps_s)} times above 1 s"
                )
        found = result.findings
        print(
            f"{result.acknowledged:,} records acknowledged, {len(found.lost)} lost, {len(found.doubled)} doubled, "
            f"{len(found.reordered)} out of order, {len(found.misplaced)} elsewhere, {len(result.unanswered)} without "
            f"an answer{''.join(f' ({why})' for why in result.unanswered[:1])}; replicas that differ: "
            f"{result.replicas_wrong or 'none'}; {result.reads:,} reads, "
            f"{result.violations[0] if result.violations else 'linearizable'}; {time.monotonic() - began_s:.0f} s"
        )
        return 0 if result.is_right else 1

    run_command("experiments", main)


@app.command()
def simulate(
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0, 1, 2 and so on, so many.")] = 5000,
    seed: Annotated[int | None, typer.Option(help="Only this one, with its whole course.")] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="That run seeds at the same time; one per processor.")
    ] = None,
    break_fence: Annotated[
        str, typer.Option(help="Break this fence or rule on purpose; the run must fail then.")
    ] = "",
    check_fences: Annotated[
        bool,
        typer.Option(
            "--check-fences",
            help="Break each fence in turn (or --break-fence's) and run seeds until that is found; all must be.",
        ),
    ] = False,
) -> None:
    """Checkpoints and recovery in virtual time with random faults; exit code 1 at the first wrong result."""

    def main() -> int:
        from experiments.simulation import seeds as runs
        from experiments.simulation.broken import FENCES

        if break_fence and break_fence not in FENCES:
            known = "; ".join(f"{name!r}: {what}" for name, what in FENCES.items())
            raise ConfigError(f"--break-fence {break_fence!r}: there are {known}")
        if seed is not None:
            print(dict(runs.outcome(seed, broken=break_fence, print_line=print)))
            return 0

        def show(line: str) -> None:
            print(line, flush=True)

        began_s = time.monotonic()
        at_once = processes or os.cpu_count() or 1
        if check_fences:
            names = [break_fence] if break_fence else list(FENCES)
            missed = runs.check_fences(names, range(seeds), at_once, show)
            took_s = time.monotonic() - began_s
            print(f"{len(names) - len(missed)} of {len(names)} broken fences found, {took_s:.0f} s")
            return 1 if missed else 0
        with runs.Seeds(at_once) as runner:
            counts = runner.run(range(seeds), break_fence, show)
        what = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        print(f"{seeds} seeds, none failed, {time.monotonic() - began_s:.0f} s; {what}")
        return 0

    run_command("experiments", main)


@app.command()
def fuzz(
    inputs: Annotated[int, typer.Option(min=1, help="Over all entries.")] = 1_000_000,
    seed: Annotated[int, typer.Option(help="Of the first input; a finding names its own.")] = 0,
    only: Annotated[str, typer.Option(help="Entries whose name has this text.")] = "",
) -> None:
    """Random and damaged inputs to every entry: no crash, no hang, no growth, one clear error each."""

    def main() -> int:
        from experiments.fuzzing.run import fuzz as run_fuzz

        began_s = time.monotonic()
        tally = run_fuzz(inputs, seed, only, print)
        for finding in tally.findings:
            print(finding)
        print(
            f"{sum(tally.inputs.values()):,} inputs to {len(tally.inputs)} entries, {len(tally.findings)} findings, "
            f"{time.monotonic() - began_s:.0f} s; slowest: {tally.slowest_entry}, {tally.slowest_s * 1e3:.0f} ms; "
            f"in their second half the processes grew by {tally.grown_bytes / (1 << 20):.1f} MiB, this one by "
            f"{tally.grown_here_bytes / (1 << 20):.1f} MiB"
        )
        return 1 if tally.findings else 0

    run_command("experiments", main)


@app.command("page")
def take_page_pictures(
    out: Annotated[Path, typer.Option(help="Directory of the pictures.")] = Path("docs/images"),
) -> None:
    """Take pictures of the page in five situations, of real jobs in a real browser; about two minutes."""

    def main() -> int:
        from experiments.page_pictures import take_pictures

        if not out.is_dir():
            raise ConfigError(f"--out {out}: there is no such directory; make it first")
        for path in take_pictures(out, print):
            print(f"written to {path}")
        return 0

    run_command("experiments", main)


@app.command("report")
def write_report(
    results: Annotated[Path, typer.Option(help="Directory of the sidecars.")] = Path("zout"),
    page: Annotated[Path, typer.Option(help="Page whose tables are made anew.")] = Path(
        "docs/experiments.md"
    ),
) -> None:
    """Write the tables of docs/experiments.md from the sidecars."""

    def main() -> int:
        from experiments.matrix_report import update_page

        print(f"{page}: table of {update_page(page, results)} configurations")
        return 0

    run_command("experiments", main)


if __name__ == "__main__":
    app(prog_name="python -m experiments")
