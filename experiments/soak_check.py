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
    found = _read(output, "part-*.jsonl")
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


def check_rows_so_far(events: Path, output: Path) -> int:
    """Compare what a job with one source subtask wrote before it failed; gives the number of rows.

    Raises:
        WrongResultError: a row is doubled, or one is there that the whole job would not have written.
    """
    found = _read(output, ".part-*.pending", "part-*.jsonl")
    if found["id"].n_unique() != found.height:
        raise WrongResultError(f"{output}: {found.height} rows with {found['id'].n_unique()} ids")
    expected = pl.read_ndjson(events).sort("id").with_columns(odd=pl.col("id") % 2)
    number = pl.int_range(1, pl.len() + 1)
    wanted = expected.with_columns(n=number.over("server"), m=number.over("server", "odd"))
    _compare(
        found.select("id").join(wanted, on="id", how="left", maintain_order="left"),
        found,
        ["server", "n", "odd", "m"],
        output,
    )
    return found.height


def _read(output: Path, *patterns: str) -> pl.DataFrame:
    """All whole rows; a process that was killed may have left a part of one."""
    texts = [path.read_bytes() for pattern in patterns for path in sorted(output.glob(pattern))]
    whole = [text[: text.rfind(b"\n") + 1] for text in texts]
    if not any(whole):
        raise WrongResultError(f"{output}: no rows")
    return pl.concat([pl.read_ndjson(text) for text in whole if text])


def _compare(wanted: pl.DataFrame, found: pl.DataFrame, columns: list[str], output: Path) -> None:
    for column in columns:
        wrong = (wanted[column].cast(found[column].dtype) != found[column]).arg_true()
        if len(wrong):
            row = int(wrong[0])
            right = wanted.row(row, named=True)[column]
            raise WrongResultError(
                f"{output}: {found.row(row, named=True)}: {column} should be {right} ({len(wrong)} rows differ)"
            )
