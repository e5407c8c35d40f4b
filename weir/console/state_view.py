"""``weir state``: what is in a savepoint, as tables, JSON or files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.table import Table
from rich.text import Text

from weir.console.given_job import GivenJob
from weir.errors import CheckpointError, GraphError
from weir.process.printable import one_entry, printable
from weir.savepoints.contents import StateSize, state_sizes
from weir.savepoints.saved_state import SavedState, open_savepoint, opened

#: How each file is written, by its suffix.
_WRITERS: dict[str, Callable[[pl.DataFrame, Path], None]] = {
    ".parquet": lambda frame, path: frame.write_parquet(path),
    ".csv": lambda frame, path: frame.write_csv(path),
    ".jsonl": lambda frame, path: frame.write_ndjson(path),
}
#: Tables are cut at a width; the terminal wraps longer lines itself. Texts are cut after so many characters.
_WIDTH, _TEXT_WIDTH = 10_000, 200


def print_contents(savepoint: str, *, as_json: bool) -> int:
    """Print the size of each state; returns the exit code.

    Raises:
        CheckpointError: there is no savepoint, or it cannot be read.
    """
    store, manifest = open_savepoint(savepoint)
    with _progress() as told, opened(store, manifest) as checkpoint:
        sizes = state_sizes(checkpoint, lambda name: told(f"reading {name}"))
    if as_json:
        document = {
            "job": manifest.job_name,
            "checkpoint": manifest.checkpoint_id,
            "created_ms": manifest.created_ms,
            "key_groups": manifest.max_parallelism,
            "states": [size._asdict() for size in sizes],
        }
        print(json.dumps(document, indent=2))
        return 0
    print(
        f"{manifest.job_name}: checkpoint {manifest.checkpoint_id} at {store.location}, {manifest.max_parallelism} key "
        "groups"
    )
    table = Table("step", "state", box=None, pad_edge=False)
    for heading in ("entries", "bytes", "groups", "largest group"):
        table.add_column(heading, justify="right")
    for size in sizes:
        # Names are no markup.
        table.add_row(*(Text(one_entry(text)) for text in _shown(size)))
    Console(highlight=False, width=_WIDTH).print(table)
    return 0


def _shown(size: StateSize) -> tuple[str, ...]:
    share = f"{size.largest_group} ({size.largest_bytes / size.size_bytes:.0%})" if size.size_bytes else ""
    return size.step, size.state, f"{size.entries:,}", f"{size.size_bytes:,}", f"{size.groups:,}", share


def print_values(
    savepoint: str,
    state: str,
    job: GivenJob,
    *,
    before: str | None,
    limit: int,
    out: Path | None,
    as_json: bool,
) -> int:
    """Print or write the keys and values of a state; returns the exit code.

    Raises:
        CheckpointError: there is no savepoint, it cannot be read, or the job could not start from it.
        GraphError: the job cannot be loaded, it has no such state, or ``out`` has another suffix.
    """
    if out is not None and out.suffix not in _WRITERS:
        raise GraphError(f"--out {out}: the suffix says how it is written; use one of {', '.join(_WRITERS)}")
    graph = job.graph()
    try:
        with _progress() as told, SavedState(savepoint, graph) as saved:
            told(f"reading {state}")
            if before is None:
                frame = saved[state]
            else:
                with SavedState(before, graph) as earlier:
                    frame = saved.diff(earlier, state)
    except KeyError as error:
        raise GraphError(str(error.args[0])) from None
    if out is not None:
        try:
            _WRITERS[out.suffix](frame, out)
        except (OSError, pl.exceptions.ComputeError) as error:
            raise CheckpointError(f"--out {out}: {error}") from error
        print(f"{frame.height:,} rows in {out}")
        return 0
    shown = frame.head(limit)
    if as_json:
        print(shown.write_ndjson(), end="")
        return 0
    with pl.Config(
        tbl_rows=-1, tbl_cols=-1, tbl_width_chars=_WIDTH, fmt_str_lengths=200, tbl_hide_dataframe_shape=True
    ):
        # Texts of rows may hold what controls a terminal.
        print(printable(str(shown)))
    print(
        f"{shown.height:,} of {frame.height:,} keys"
        + ("" if shown.height == frame.height else "; --limit shows more")
    )
    return 0


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A line on standard error that says what is read, while it is read; none where that is no terminal."""
    with Console(file=sys.stderr).status("opening") as status:
        yield status.update
