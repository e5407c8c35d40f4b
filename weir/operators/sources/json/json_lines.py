"""The JSON-lines source."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from typing_extensions import override

from weir.errors import InputError
from weir.operators.sources.files.folder_columns import folder_constants, with_constants, without_required
from weir.operators.sources.files.splits import Split
from weir.operators.sources.json.json_decode import Decoded, JsonDecoder
from weir.operators.sources.lines.line_reader import LineReader, OverlongLine
from weir.operators.sources.lines.line_shapes import SHAPE_BLANK, cut_lines, line_shapes
from weir.operators.sources.lines.line_source import LineSource
from weir.specs import JsonLinesSpec

#: Of a file; they tell most files from arrays.
_BEGIN_BYTES = 64
#: A byte order mark and white space.
_BEFORE_VALUE = b"\xef\xbb\xbf \t\r\n"
#: How to have the lines' own column where a folder has its name.
_OWN_COLUMN = ', or tell the source that the lines have it: paths={{"{column}": ["{column}"]}}'


class JsonLinesReader(LineSource):
    """Reads one subtask's splits of JSON-lines files; ``json_strict`` defines which lines are good.

    Blank lines are passed over. A column that a file's folders say has their value where a line has none. A file that
    is one JSON array has no lines that are objects, however many there are: it fails the job, or, if the source follows
    its directory, is told of with the first dead letter.
    """

    def __init__(self, spec: JsonLinesSpec) -> None:
        super().__init__(spec)
        self._spec = spec
        #: The one of the last file, and the schema and the required columns that it was made for.
        self._decoder: JsonDecoder | None = None
        self._decoder_for: object = None
        #: The folder that was asked about last, and its columns.
        self._folder, self._constants = "", dict[str, pa.Scalar]()
        #: Of the columns that are read, those that the open file's folders say.
        self._of_folders: Mapping[str, pa.Scalar] = {}
        #: Nothing of the file has been decoded.
        self._at_beginning = False
        #: Why the next bad line is one, and all after it in the file.
        self._is_array = ""

    def _open_files(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._columns_of_folders(path)
        super()._open_files(paths)

    def _add_file(self, path: str, size_bytes: int) -> None:
        self._columns_of_folders(path)
        super()._add_file(path, size_bytes)

    def _columns_of_folders(self, path: str) -> Mapping[str, pa.Scalar]:
        """Return the value of all rows of a file in the columns that its folders say.

        Raises:
            InputError: a value is not of its column's type.
        """
        folder = path[: path.rfind("/") + 1]
        if folder != self._folder:
            self._constants = folder_constants(path, self._spec.schema, dict(self._spec.paths), _OWN_COLUMN)
            self._folder = folder
        return self._constants

    @override
    def _begin_split(self, reader: LineReader) -> None:
        self._at_beginning = reader.split.start_bytes == 0
        self._is_array = ""
        found = self._columns_of_folders(reader.path)
        self._of_folders = {name: found[name] for name in self._spec.schema_read.names if name in found}
        schema = without_required(self._spec.schema_read, self._of_folders)
        time_column = self._spec.event_time_column
        has_time = time_column in self._of_folders and self._of_folders[time_column].is_valid
        required = () if time_column is None or has_time else (time_column,)
        if self._decoder is None or self._decoder_for != (schema, required):
            self._decoder_for = schema, required
            self._decoder = JsonDecoder(
                schema,
                required=required,
                line_bytes_max=self._spec.line_bytes_max,
                lines_max=self.rows_decoded_max,
                paths={column: path for column, path in self._spec.paths if column in schema.names},
            )

    def _decode_lines(self, reader: LineReader, may_be_more: bool) -> Decoded:
        if self._at_beginning:
            self._at_beginning = False
            window = reader.data[reader.start : reader.stop].data
            # Most files begin otherwise, and their lines are not copied.
            begin = bytes(window[:_BEGIN_BYTES]).lstrip(_BEFORE_VALUE)
            may_be = not begin or begin.startswith(b"[")
            if may_be and is_array(bytes(window), ends=reader.at_last_line and not self._may_grow):
                self._refuse_array(reader.path)
        assert self._decoder is not None
        decoded = self._decoder.decode(reader.data, reader.start, reader.stop, self.rows_wanted)
        if not self._of_folders:
            return decoded
        rows = decoded.batch
        return replace(
            decoded, batch=with_constants(rows, rows.num_rows, self._of_folders, self._spec.schema_read)
        )

    def _line_of_row(self, reader: LineReader, row: int) -> int:
        lines = np.empty((self.rows_decoded_max, 3), dtype=np.int64)
        _, count = cut_lines(reader.data, self._decoded_start, reader.start, len(lines), lines)
        if self._decoded_rows is not None and count == self._decoded_rows.batch.num_rows:
            return int(lines[row, 0])
        shapes = np.empty(count, dtype=np.uint8)
        line_shapes(reader.data, lines, count, self._spec.line_bytes_max, shapes)
        bad = [rejection.start for rejection in self._decoded.rejections] if self._decoded else []
        gave_row = (shapes != SHAPE_BLANK) & ~np.isin(lines[:count, 0], bad)
        return int(lines[np.flatnonzero(gave_row)[row], 0])

    def _reject_overlong(self, split: Split, line: OverlongLine) -> None:
        if self._at_beginning:
            self._at_beginning = False
            if is_array(line.head, ends=False):
                self._refuse_array(split.path)
        super()._reject_overlong(split, line)

    def _reject(
        self, split: Split, position: int, reason: str, raw: bytes, length_bytes: int | None = None
    ) -> None:
        why, self._is_array = self._is_array, ""
        super()._reject(split, position, f"{reason}; {why}" if why else reason, raw, length_bytes)

    def _refuse_array(self, path: str) -> None:
        mend = f"make lines of it and read these: jq -c '.[]' {shlex.quote(path)}"
        if not self._follows:
            raise InputError(f"input {path} is one JSON array, and not one JSON object a line; {mend}")
        # Files come and go while the job runs: one that is wrong does not end it.
        self._is_array = f"the file is one JSON array; {mend}"


def is_array(data: bytes, *, ends: bool) -> bool:
    """Whether lines, which begin a file, begin an array of objects that is more than one line, or the whole file.

    A line that is an array among others is a bad record like any.

    Args:
        data: one line at least, the last one with its newline.
        ends: the file ends with them.
    """
    data = data.lstrip(_BEFORE_VALUE)
    if not data.startswith(b"[") or not data[1:].lstrip(_BEFORE_VALUE).startswith((b"{", b"]")):
        return False
    line, _, rest = data.partition(b"\n")
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return True
    return ends and not rest.strip()
