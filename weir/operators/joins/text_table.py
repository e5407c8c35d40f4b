"""Tables of lines of text that rows look up: CSV and JSON lines, read by the readers of sources.

So a value that a source refuses is refused here too, and not made another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl
import pyarrow as pa

from weir.author.operator import OperatorContext
from weir.errors import InputError
from weir.operators.sources.csv.csv_source import CsvReader
from weir.operators.sources.json.json_lines import JsonLinesReader
from weir.specs import CsvSpec, JsonLinesSpec
from weir.specs.lookup_joins import FileTableSpec


class TextTable:
    """Rows of some files, in the order of the files; they are read each time.

    Args:
        paths: the files.
        spec: of the table.
        schema: columns that are read.
        step: its name, for messages.
    """

    def __init__(self, paths: Sequence[str], spec: FileTableSpec, schema: pa.Schema, step: str) -> None:
        self._paths, self._spec, self._schema, self._step = paths, spec, schema, step

    def held(self, bytes_max: int) -> pl.DataFrame | None:
        """Return all rows; None: they take more memory.

        Raises:
            InputError: see :meth:`frames`.
        """
        frames, left = [], bytes_max
        for frame in self.frames():
            frames.append(frame)
            left -= int(frame.estimated_size())
            if left < 0:
                return None
        return pl.concat(frames)

    def frames(self) -> Iterator[pl.DataFrame]:
        """Yield the rows, some at a time; first a frame without any.

        Raises:
            InputError: a file cannot be read, or has a record that is not as the table is declared.
        """
        yield pl.DataFrame(self._schema.empty_table())
        reader: CsvReader | JsonLinesReader
        if self._spec.format == "csv":
            reader = CsvReader(CsvSpec(schema=self._schema, path=self._spec.path, on_bad_record="fail"))
        else:
            reader = JsonLinesReader(
                JsonLinesSpec(schema=self._schema, path=self._spec.path, on_bad_record="fail")
            )
        try:
            for batch in reader.rows_of(self._paths, OperatorContext("", self._step, 0, 0, 1)):
                yield pl.DataFrame(pa.Table.from_batches([batch.select(self._schema.names)]))
        except InputError as error:
            # What follows is of sources.
            reason = str(error).partition("; correct")[0]
            raise InputError(f"step {self._step!r}: {self._spec.shown} cannot be read: {reason}") from error
        finally:
            reader.close()
