"""The CSV source."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import partial

import pyarrow as pa

from weir.errors import InputError
from weir.operators.sources.csv.csv_decode import CsvDecoder
from weir.operators.sources.csv.csv_format import CsvFormat, header_fields
from weir.operators.sources.files.folder_columns import folder_constants, with_constants
from weir.operators.sources.files.foreign_files import BEGIN_BYTES, foreign_form
from weir.operators.sources.files.input_files import unreadable
from weir.operators.sources.files.near_names import near_name
from weir.operators.sources.files.splits import Split, open_split
from weir.operators.sources.json.json_decode import Decoded
from weir.operators.sources.lines.line_reader import LineReader
from weir.operators.sources.lines.line_source import LineSource, decode_next
from weir.specs import CsvSpec

_HEADER_BLOCK_BYTES = 64 << 10
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
#: In a header it ends a line of a file that has no newlines, and all records would be names of columns.
_LONE_RETURN = re.compile(r"\r(?!\n)")


class CsvReader(LineSource):
    """Reads one subtask's splits of CSV files; ``csv_scan`` defines which records are good.

    A file is one split, unless no field holds a newline (``quoted_newlines=False``): from the middle of a file nobody
    can tell a record's end from a newline in quotes. Columns that a file lacks may be in the names of its folders;
    else they are null, if they may be.
    """

    def __init__(self, spec: CsvSpec) -> None:
        super().__init__(spec)
        self._spec = spec
        self._keeps_files = self._keeps_files or spec.quoted_newlines
        self._form = CsvFormat(
            spec.delimiter,
            spec.quote,
            spec.null_values,
            not spec.quoted_newlines,
            spec.line_bytes_max,
            spec.escape,
        )
        #: The one of the last file, and the fields and the columns of folders that it was made for.
        self._decoder: CsvDecoder | None = None
        self._decoder_for: object = None
        #: Of the columns that are read, those that the open file does not say, but its folders; or nothing does.
        self._of_folders: Mapping[str, pa.Scalar] = {}
        #: One of these that has no value, and must have one.
        self._null_column: str | None = None
        #: Where the open file's first record after its header begins.
        self._first_record = 0

    def _begin_split(self, reader: LineReader) -> None:
        fields, self._first_record = self._fields(reader.split)
        schema, time_column = self._spec.schema_read, self._spec.event_time_column
        found = folder_constants(reader.path, self._spec.schema, fields)
        found |= self._absent({*fields, *found})
        self._of_folders = {name: found[name] for name in schema.names if name in found}
        nulls = {name for name, constant in self._of_folders.items() if not constant.is_valid}
        required = {field.name for field in schema if not field.nullable or field.name == time_column}
        self._null_column = min(nulls & required, default=None)
        decoder_for = tuple(fields), frozenset(found)
        if self._decoder is not None and self._decoder_for == decoder_for:
            return
        self._check_fields(reader.path, [*fields, *found])
        self._decoder_for = decoder_for
        self._decoder = CsvDecoder(
            pa.schema([field for field in schema if field.name not in found]),
            [] if time_column is None or time_column in found else [time_column],
            fields,
            self._form,
            self.rows_decoded_max,
        )

    def _absent(self, there: Set[str]) -> dict[str, pa.Scalar]:
        """Null, for each column that may be null and that a file with a header has not: it was added later."""
        schema, time_column = self._spec.schema, self._spec.event_time_column
        if not self._spec.header or there.isdisjoint(schema.names):
            # A file of something else, or with another delimiter, is not a file of nulls.
            return {}
        absent = (field for field in schema if field.nullable and field.name not in there)
        return {
            field.name: pa.scalar(None, field.type)
            for field in absent
            if field.name != time_column and near_name(field.name, there, schema.names) is None
        }

    def _fields(self, split: Split) -> tuple[Sequence[str], int]:
        """The names of a file's fields, and where its first record after the header begins."""
        return self._header(split) if self._spec.header else (self._spec.columns, 0)

    def _header(self, split: Split) -> tuple[list[str], int]:
        """The names in a file's first record, and where the next one begins."""
        path, data = split.path, b""
        try:
            with open_split(split, self._files) as file:
                while True:
                    block = file.read(_HEADER_BLOCK_BYTES)
                    data += block
                    form = foreign_form(path, data[:BEGIN_BYTES]) if split.codec is None else None
                    if form is not None:
                        raise ValueError(f"the file is {form}")
                    mark = len(_BYTE_ORDER_MARK) if data.startswith(_BYTE_ORDER_MARK) else 0
                    found = header_fields(data[mark:], self._form, at_end=not block)
                    if found is not None:
                        if any(_LONE_RETURN.search(name) for name in found[0]):
                            raise ValueError(
                                "its lines end with carriage returns alone, and not with newlines; "
                                f"make newlines of them: tr '\\r' '\\n' < {shlex.quote(path)}"
                            )
                        return found[0], mark + found[1]
                    if len(data) > self._spec.line_bytes_max:
                        raise ValueError(
                            f"it is longer than line_bytes_max ({self._spec.line_bytes_max} bytes)"
                        )
        except (OSError, pa.ArrowException) as error:
            raise unreadable(path, error) from error
        except ValueError as error:
            raise InputError(
                f"{path}: the header cannot be read: {error}; correct the file, or say header=False"
            ) from error

    def _check_fields(self, path: str, fields: Sequence[str]) -> None:
        for name in self._spec.schema.names:
            count = list(fields).count(name)
            if count != 1:
                near = near_name(name, fields, self._spec.schema.names)
                listed = f"only {', '.join(fields)}" if near is None else f"but {near!r}"
                what = (
                    f"there is no column {name}, {listed}" if not count else f"column {name} is there twice"
                )
                raise InputError(
                    f"{path}: {what}; correct the source's schema, delimiter or header setting, or the file"
                )

    def _decode_lines(self, reader: LineReader, may_be_more: bool) -> Decoded:
        assert self._decoder is not None
        decoded = _decode_from(self._decoder, self._first_record, reader, may_be_more)
        if not self._of_folders:
            return decoded
        if self._null_column is not None:
            reason = f"field {self._null_column} is null"
            decoded = self._decoder.all_bad(decoded, reader.data, reader.stop, reason)
        assert decoded.starts is not None
        rows = with_constants(decoded.batch, len(decoded.starts), self._of_folders, self._spec.schema_read)
        return replace(decoded, batch=rows)

    def _line_of_row(self, reader: LineReader, row: int) -> int:
        assert self._decoded is not None
        assert self._decoded.starts is not None
        return int(self._decoded.starts[row])

    def _count_rows(self, splits: Sequence[Split], enough: int) -> int:
        count = 0
        for split in splits:
            fields, first_record = self._fields(split)
            decoder = CsvDecoder(pa.schema([]), [], fields, self._form, self.rows_decoded_max)
            with contextlib.closing(
                LineReader(split, self._spec.line_bytes_max, files=self._files)
            ) as reader:
                decode = partial(_decode_from, decoder, first_record, reader)
                while count < enough and (decoded := decode_next(reader, decode, lambda line: None)):
                    assert decoded.starts is not None
                    count += len(decoded.starts)
                    reader.start = decoded.next_start
        return min(count, enough)


def _decode_from(decoder: CsvDecoder, first_record: int, reader: LineReader, may_be_more: bool) -> Decoded:
    """Decode records of the reader's window, but not the file's header."""
    start = max(reader.start, min(first_record - reader.base_offset, reader.stop))
    return decoder.decode(reader.data, start, reader.stop, may_be_more)
