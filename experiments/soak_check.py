"""Input of the soak job, and its output against a batch computation of the same input."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import polars as pl

from weir.errors import WeirError


class WrongResultError(WeirError):
    """The output is not what a batch computation gives; the message names a key."""


def write_events(path: Path, events: int, servers: int, seed: int) -> Path:
    """JSON lines with ids from 0 on and servers drawn at random; the same for the same arguments."""
    chosen = np.random.default_rng(seed).integers(0, servers, events)
    names = pl.Series("server", [f"server-{index}" for index in range(servers)])
    pl.DataFrame({"id": np.arange(events), "server": names.gather(chosen)}).write_ndjson(path)
    return path


def check_output(events: Path, output: Path, *, ordered: bool = True) -> str:
    """Compare row by row; gives a digest of the final counts, which must be the same for every run.

    Args:
        events: what the job read.
        output: the directory that it wrote.
        ordered: the source had one subtask, so that a server's ``n`` follows the order of its ids.

    Raises:
        WrongResultError: rows are lost, doubled or out of order, or a count is wrong.
    """
    expected = pl.read_ndjson(events).with_columns(odd=pl.col("id") % 2)
    paths = [path for path in sorted(output.glob("part-*.jsonl")) if path.stat().st_size]
    found = pl.concat([pl.read_ndjson(path) for path in paths])
    if found.height != expected.height or found["id"].n_unique() != expected.height:
        distinct = found["id"].n_unique()
        raise WrongResultError(
            f"{output}: {found.height} rows with {distinct} ids; {expected.height} of each are right"
        )
    wanted = expected.sort("server", "id").with_columns(n=pl.int_range(1, pl.len() + 1).over("server"))
    order = ["id", "server", "n"] if ordered else ["server", "n"]
    _compare(wanted.sort("server", "n"), found.sort("server", "n"), order, output)
    wanted = expected.sort("server", "odd", "id").with_columns(
        m=pl.int_range(1, pl.len() + 1).over("server", "odd")
    )
    _compare(wanted, found.sort("server", "odd", "m"), ["server", "odd", "m"], output)
    final = found.group_by("server", "odd").agg(pl.col("m").max(), pl.col("highest").max(), pl.col("n").max())
    return hashlib.sha256(final.sort("server", "odd").write_csv().encode()).hexdigest()[:16]


def _compare(wanted: pl.DataFrame, found: pl.DataFrame, columns: list[str], output: Path) -> None:
    for column in columns:
        wrong = (wanted[column].cast(found[column].dtype) != found[column]).arg_true()
        if len(wrong):
            row = int(wrong[0])
            right = wanted.row(row, named=True)[column]
            raise WrongResultError(
                f"{output}: {found.row(row, named=True)}: {column} should be {right} ({len(wrong)} rows differ)"
            )
