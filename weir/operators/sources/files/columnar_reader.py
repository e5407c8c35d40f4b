"""What the readers of columnar files share: the columns that a file must have, and rows that are bad."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from weir.errors import InputError
from weir.operators.sources.files.columnar_paths import FilePlaces, NoSuchColumnError, find_columns
from weir.operators.sources.files.file_reader import FileReader
from weir.operators.sources.files.input_files import unreadable
from weir.operators.sources.files.near_names import near_name
from weir.operators.sources.files.positions import Rest
from weir.rows.python_values import row_json
from weir.rows.schemas import is_widened_by
from weir.rows.utf8 import wrong_texts
from weir.specs import ArrowIpcSpec, ParquetSpec


class ColumnarReader(FileReader):
    """Base of the readers of Parquet and of Arrow IPC.

    A *place* is an integer that grows from row to row of a file.
    """

    def __init__(self, spec: ArrowIpcSpec | ParquetSpec) -> None:
        super().__init__(spec)
        time_column = spec.event_time_column
        self._columnar_spec = spec
        self._required = [f.name for f in spec.schema_read if not f.nullable or f.name == time_column]
        #: Parts of files that are left, the next one last; and the one that is read.
        self._pending: list[Rest] = []
        self._part: Rest | None = None
        #: Place of the first row of that one that was not decoded.
        self._next = 0
        #: Of the last decoded batch: its first row's place, and bool, shape (rows,), which rows were good.
        self._decoded, self._good = 0, np.empty(0, dtype=np.bool_)

    @abstractmethod
    def _told(self, place: int) -> tuple[str, int, str]:
        """File, position and what the reason begins with, of a row that is bad."""

    @abstractmethod
    def _parts(self, path: str) -> list[Rest]:
        """The parts of a file that subtasks share, each in places.

        Raises:
            InputError: it cannot be read, or does not have the columns.
        """

    def _open_files(self, paths: Sequence[str]) -> None:
        self._read_shares(self._share([part for path in paths for part in self._parts(path)]))

    def _add_file(self, path: str, size_bytes: int) -> None:
        parts = self._parts(path)
        self._pending[:0] = parts[::-1]
        self._hold(parts)

    def _resume_input(self, shares: list[list[Rest]]) -> None:
        self._read_shares([[replace(rest, begun=False) for rest in share] for share in shares])

    def _read_shares(self, shares: list[list[Rest]]) -> None:
        self._assigned = shares
        self._pending = shares[self._rank][::-1]
        self._hold(shares[self._rank])

    def _rests(self) -> list[Rest]:
        rests, part = self._pending[::-1], self._part
        if part is not None:
            start = self._next if self._decoded_rows is None else self._first_left()
            if start < part.stop:
                rejected_to = max(self._next, part.rejected_to)
                rests.insert(0, Rest(part.path, start, part.stop, rejected_to, begun=True))
        return rests

    def _check_schema(self, path: str, found: pa.Schema) -> FilePlaces:
        """Where the columns that are read are in a file.

        Raises:
            InputError: the file does not have each column of the schema once, with its type or a narrower one; or it
                has none of them. It need not have one that may be null.
        """
        try:
            return self._places_in(path, found)
        except UnicodeDecodeError as error:
            # A damaged name.
            raise unreadable(path, error) from error

    def _places_in(self, path: str, found: pa.Schema) -> FilePlaces:
        spec, given = self._columnar_spec, dict(self._columnar_spec.paths)
        required = () if spec.event_time_column is None else (spec.event_time_column,)
        try:
            places = find_columns(path, found, spec.schema, given, required)
            if not places.paths and not any(value.is_valid for value in places.constants.values()):
                # A file of something else is not a file of nulls: its first column is refused.
                find_columns(path, found, spec.schema, given, spec.schema.names)
        except NoSuchColumnError as error:
            raise InputError(f"{path}: {error}; correct the source's schema or the file") from None
        for field in self._columnar_spec.schema:
            column = str(given.get(field.name, (field.name,))[0])
            near = near_name(column, found.names, [*spec.schema.names, column])
            constant = places.constants.get(field.name)
            if constant is not None and not constant.is_valid and near is not None:
                raise InputError(
                    f"{path}: there is no column {column}, but {near!r}; correct the source's schema or the file"
                )
            actual = places.types[field.name]
            if not is_widened_by(actual, field.type):
                raise InputError(
                    f"{path}: column {field.name} has type {actual}, the source's schema says {field.type}, and "
                    f"that does not hold every such value: correct the schema or the file"
                )
        return find_columns(path, found, spec.schema_read, given, required)

    def _good_rows(self, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """Put rows aside that have forbidden nulls or texts that are not UTF-8; ``first``: place of the first row."""
        good = np.ones(batch.num_rows, dtype=np.bool_)
        for name in self._required:
            column = batch.column(name)
            if column.null_count:
                missing = column.is_null().to_numpy(zero_copy_only=False)
                for row in np.flatnonzero(missing & good).tolist():
                    self._reject(first + row, f"field {name} is null", batch.slice(row, 1))
                good &= ~missing
        for row, name in sorted(wrong_texts(batch).items()):
            if good[row]:
                self._reject(first + row, f"field {name} is not UTF-8", batch.slice(row, 1))
                good[row] = False
        if not good.all():
            batch = batch.filter(pa.array(good))
        self._decoded, self._good = first, good
        return pa.RecordBatch.from_arrays(batch.columns, schema=self._columnar_spec.schema_read)

    def _keep_decoded(self, kept: np.ndarray) -> None:
        super()._keep_decoded(kept)
        # Another array: what is read on begins with that one.
        self._good = self._good.copy()
        self._good[self._good] = kept

    def _first_left(self) -> int:
        """Place of the first row of the last decoded batch that was not given out."""
        return self._decoded + int(np.flatnonzero(self._good)[self._first_left_row])

    def _place_of_row(self, row: int) -> tuple[str, int, str]:
        return self._told(self._decoded + int(np.flatnonzero(self._good)[row]))

    def _reject(self, place: int, reason: str, row: pa.RecordBatch) -> None:
        if self._part is not None and place < self._part.rejected_to:
            # It was put aside before.
            return
        path, position, where = self._told(place)
        self.rejected += 1
        if self._columnar_spec.on_bad_record == "fail":
            raise InputError(
                f"{path} {self._position_unit} {position}: {where}{reason}; correct the file, or let the source "
                f'{self._context.operator_name} put bad records aside with on_bad_record="dead_letter"'
            )
        if self._context.dead_letters is not None:
            self._context.dead_letters.reject(path, position, where + reason, row_json(row))
