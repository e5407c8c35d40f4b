"""``python -m experiments.log_simulation``: many seeds, or a planted fault."""

from __future__ import annotations

from typing import Annotated

import typer

from experiments.log_simulation.machines import FAULTS, Machines
from experiments.log_simulation.run import ViolationError, run

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

EPILOG = """
Examples:

\b
python -m experiments.log_simulation --seeds 5000
python -m experiments.log_simulation --first 1234 --seeds 1
python -m experiments.log_simulation --fault "unclean leader" --seeds 300
"""


@app.command(epilog=EPILOG)
def main(
    seeds: Annotated[int, typer.Option(min=1, help="How many.")] = 200,
    first: Annotated[int, typer.Option(help="The first one.")] = 0,
    fault: Annotated[
        str | None, typer.Option(help=f"Plant a fault, one of: {'; '.join(FAULTS)}. It must be found.")
    ] = None,
) -> None:
    """Run the log in virtual time among random faults; the exit code is 1 if something does not hold."""
    machines = Machines() if fault is None else FAULTS[fault]
    acknowledged, found = 0, 0
    for seed in range(first, first + seeds):
        try:
            acknowledged += run(seed, machines)
        except (ViolationError, Exception) as error:
            found += 1
            if found <= 5:
                print(f"seed {seed}: {type(error).__name__}: {error}")
    print(
        f"{seeds} seeds, {acknowledged} records acknowledged, {found} seeds with something that does not hold"
    )
    raise SystemExit(int(bool(found)))


if __name__ == "__main__":
    app(prog_name="python -m experiments.log_simulation")
