"""Tables in files that rows look up: whole where they are small, else searched for keys.

Lines of text are read as by sources (``text_table``), all else by Polars.
"""

from __future__ import annotations

import glob
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import polars as pl
import pyarrow as pa

from weir.errors import InputError
from weir.operators.joins.text_table import TextTable
from weir.operators.sources.files.input_files import is_found, is_part
from weir.rows.schemas import is_widened_by
from weir.specs.lookup_joins import FileTableSpec

#: A table of at most so many bytes on disk is held in memory, if it is not larger than four times as much there.
_HELD_BYTES_MAX = 64 << 20
#: What a table is known by: of each file its path, the time of its last change, and its size.
_Signature = tuple[tuple[str, int, int], ...]


class FileTableReader:
    """Reader of a table in files: a ``weir.operators.joins.lookup_join_operator.TableReader``."""

    def __init__(self, spec: FileTableSpec, keys: Sequence[str], columns: Sequence[str], step: str) -> None:
        self._spec, self._keys, self._columns, self._step = spec, list(keys), list(columns), step
        types = dict(pl.Schema(pl.DataFrame(spec.schema.empty_table()).schema))
        self._types = {name: types[name] for name in columns}
        self._target = pa.schema([spec.schema.field(name).with_nullable(True) for name in columns])
        #: What its files were, and the table: where it is small its rows, else how they are read.
        self._opened: tuple[_Signature, pl.DataFrame | pl.LazyFrame | TextTable] | None = None
        # A damaged file may make Polars panic.
        self._errors: tuple[type[BaseException], ...] = (
            OSError,
            pl.exceptions.PolarsError,
            pl.exceptions.PanicException,
        )
        self._delta: tuple[str, int, int] | None = None
        if spec.format == "delta":
            self._errors = (*self._errors, _delta_error(step))
        # A table that is not there is told when the job begins, not with the first row.
        self._signed()

    def find(self, keys: pa.RecordBatch) -> pa.Table:
        """The rows that have one of these keys, in the order of the files.

        Raises:
            InputError: the files cannot be read as the table is declared.
        """
        wanted = pl.DataFrame(pa.Table.from_batches([keys]))
        try:
            table = self._table()
            if isinstance(table, TextTable):
                found = pl.concat([self._of_keys(frame, wanted) for frame in table.frames()])
            else:
                if isinstance(table, pl.LazyFrame):
                    # While it is read: else all of a large table would be in memory before the join.
                    table = table.filter([pl.col(name).is_in(wanted[name].implode()) for name in self._keys])
                found = self._of_keys(table, wanted)
        except self._errors as error:
            raise self._error(error) from error
        return found.to_arrow().cast(self._target)

    def _of_keys(self, rows: pl.DataFrame | pl.LazyFrame, wanted: pl.DataFrame) -> pl.DataFrame:
        return rows.lazy().join(wanted.lazy(), on=self._keys, how="semi", maintain_order="left").collect()

    def close(self) -> None:
        """Let go of what is held."""
        self._opened = None

    def _table(self) -> pl.DataFrame | pl.LazyFrame | TextTable:
        """The table's columns that are read."""
        signature = self._signed()
        if self._opened is None or self._opened[0] != signature:
            self._opened = None
            self._opened = signature, self._read(signature)
        return self._opened[1]

    def _read(self, signature: _Signature) -> pl.DataFrame | pl.LazyFrame | TextTable:
        is_small = sum(size for *_, size in signature) <= _HELD_BYTES_MAX
        if self._spec.format in ("csv", "json"):
            schema = pa.schema([self._spec.schema.field(name) for name in self._columns])
            text = TextTable([path for path, *_ in signature], self._spec, schema, self._step)
            held = text.held(4 * _HELD_BYTES_MAX) if is_small else None
            return text if held is None else held
        lazy = self._scanned(signature)
        self._check_types(lazy.collect_schema())
        lazy = lazy.select([pl.col(name).cast(dtype) for name, dtype in self._types.items()])
        if not is_small:
            return lazy
        frame = lazy.collect()
        return frame if frame.estimated_size() <= 4 * _HELD_BYTES_MAX else lazy

    def _check_types(self, found: pl.Schema) -> None:
        """Refuse columns that a cast would change without a word: Polars cuts digits off, and takes times for others.

        Raises:
            InputError: a column is of a type that the declared one does not hold.
        """
        for name in self._columns:
            if name not in found:
                raise InputError(
                    f"step {self._step!r}: {self._spec.shown} has no column {name!r}, only {', '.join(found.names())}; "
                    "correct the table's schema or the file"
                )
            actual = pl.DataFrame(schema={name: found[name]}).to_arrow().schema.field(name).type
            wanted = self._spec.schema.field(name).type
            if not is_widened_by(actual, wanted):
                raise InputError(
                    f"step {self._step!r}: column {name!r} of {self._spec.shown} is {actual}, the table's schema says "
                    f"{wanted}, and that does not hold every such value: correct the schema or the file"
                )

    def _scanned(self, signature: _Signature) -> pl.LazyFrame:
        paths, kind = [path for path, *_ in signature], self._spec.format
        if kind == "delta":
            return pl.scan_delta(self._spec.path)
        return pl.scan_ipc(paths, glob=False) if kind == "arrow" else pl.scan_parquet(paths, glob=False)

    def _signed(self) -> _Signature:
        """The files of the table as they are now.

        Raises:
            InputError: there are none.
        """
        base = Path(self._spec.path)
        try:
            if self._spec.format == "delta":
                found = self._delta_log(base)
            else:
                found = [
                    (str(each), each.stat().st_mtime_ns, each.stat().st_size) for each in self._files(base)
                ]
        except OSError as error:
            raise self._error(error) from error
        if not found:
            what = "is no Delta Lake table" if self._spec.format == "delta" else "has no files"
            raise InputError(f"step {self._step!r}: {self._spec.shown} {what}; correct the path")
        return tuple(found)

    def _delta_log(self, base: Path) -> list[tuple[str, int, int]]:
        """The last file of the log of a Delta Lake table, of which each change is one; with the size of all data."""
        last = max(base.glob("_delta_log/*.json"), default=None)
        if last is None:
            return []
        name, changed_ns = str(last), last.stat().st_mtime_ns
        if self._delta is None or self._delta[:2] != (name, changed_ns):
            self._delta = name, changed_ns, sum(each.stat().st_size for each in base.rglob("*.parquet"))
        return [self._delta]

    def _files(self, base: Path) -> list[Path]:
        if base.is_dir():
            # What is not there yet lies below _temporary.
            named = [each for each in base.rglob("*") if all(map(is_part, each.relative_to(base).parts))]
        elif glob.has_magic(self._spec.path):
            matches = glob.glob(self._spec.path, recursive=True)
            named = [Path(each) for each in matches if is_found(each, self._spec.path)]
        else:
            return [base]
        return sorted(each for each in named if each.is_file())

    def _error(self, error: BaseException) -> InputError:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        text = " ".join((reason or type(error).__name__).split("\n")[0].split())
        return InputError(f"step {self._step!r}: {self._spec.shown} cannot be read: {text}")


def _delta_error(step: str) -> type[Exception]:
    """What the library of Delta Lake raises.

    Raises:
        InputError: it is not installed.
    """
    try:
        found: type[Exception] = import_module("deltalake.exceptions").DeltaError
    except ImportError as error:
        raise InputError(
            f"step {step!r}: Delta Lake's library is not installed; run: pip install 'weir[delta]'"
        ) from error
    return found
