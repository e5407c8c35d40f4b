"""``python -m experiments run SET``: the latency experiments on real processes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from experiments import matrix
from weir.entry_point import run as run_command
from weir.errors import ConfigError

_EPILOG = """
Examples:

\b
python -m experiments run seeds --out zout/
python -m experiments run predecessor --out zout/ --only local3 --only hybrid5
python plot.py zout/ --out plots/ --overwrite
"""

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, epilog=_EPILOG)


@app.callback()
def _describe() -> None:
    """Latency around a rescale, for each state strategy, with the same work and rate."""


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
        settings = RunSettings(events, warm_up_s, scale_after_s, repeat, keys)
        paths = run_matrix(
            matrix.configurations(set_name, only or ()), settings, out, lambda line: print(line, flush=True)
        )
        print(
            f"{len(paths)} results in {out}, {time.monotonic() - began_s:.0f} s; python plot.py {out} draws them"
        )
        return 0

    run_command("experiments", main)


if __name__ == "__main__":
    app(prog_name="python -m experiments")
