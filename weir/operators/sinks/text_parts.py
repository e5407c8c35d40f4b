"""Rows as texts, JSON lines and CSV, and parts of these.

Bytes, which JSON has not, are base64, as in answers to questions. A writer is made for one part and used by one thread
at a time. It encodes without the GIL.
"""

from __future__ import annotations

import contextlib
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import polars as pl
import pyarrow as pa

from weir.errors import InputError
from weir.rows.frames import frame_of, has_arrays
from weir.rows.records import user_columns

#: Since 1973 each zone is whole minutes from UTC.
_WHOLE_FROM_S = 94_694_400


def json_lines(batch: pa.RecordBatch) -> bytes:
    """The user columns of a batch, one JSON object a line."""
    return frame_lines(frame_of(batch.select(user_columns(batch.schema))))


def with_whole_minutes(frame: pl.DataFrame) -> pl.DataFrame:
    """Times of zones that were not whole minutes from UTC then, as before 1900, in UTC: texts leave seconds out."""
    odd = [
        _changed(pl.col(name), dtype, _has_zone, _in_utc).alias(name)
        for name, dtype in frame.schema.items()
        if _has(dtype, _has_zone) and _is_odd(frame.get_column(name))
    ]
    return frame.with_columns(odd) if odd else frame


def _has_zone(dtype: pl.DataType) -> bool:
    return isinstance(dtype, pl.Datetime) and dtype.time_zone not in (None, "UTC")


def _in_utc(times: pl.Expr) -> pl.Expr:
    return times.dt.convert_time_zone("UTC")


def _is_odd(values: pl.Series) -> bool:
    """Whether some of these times, also within lists and structs, lie seconds beside a minute from UTC."""
    dtype = values.dtype
    if isinstance(dtype, pl.Struct):
        fields = [field.name for field in dtype.fields if _has(_inner(field), _has_zone)]
        return any(_is_odd(values.struct.field(name)) for name in fields)
    if isinstance(dtype, pl.List | pl.Array):
        return _is_odd(values.explode())
    odd = odd_times(values)
    return odd is not None and bool(odd.any())


def odd_times(times: pl.Series) -> pl.Series | None:
    """Which times of a zone lie seconds beside a minute from UTC; None: none does."""
    first_s = times.dt.epoch("s").min()
    if not isinstance(first_s, int) or first_s > _WHOLE_FROM_S:
        return None
    ahead_s = (times.dt.base_utc_offset() + times.dt.dst_offset()).dt.total_seconds()
    return (ahead_s % 60 != 0).fill_null(False)


def frame_lines(frame: pl.DataFrame) -> bytes:
    """The rows of a frame, one JSON object a line.

    Raises:
        InputError: see :func:`naming_years`.
    """
    out = io.BytesIO()
    with naming_years():
        frame = with_whole_minutes(frame)
        texts = [
            _changed(pl.col(name), dtype, _is_bytes, _text).alias(name)
            for name, dtype in frame.schema.items()
            if _has(dtype, _is_bytes)
        ]
        frame.with_columns(texts).write_ndjson(out)
    return out.getvalue()


@contextlib.contextmanager
def naming_years() -> Iterator[None]:
    """Write dates and times as texts.

    Raises:
        InputError: Polars panics at one that is too far away.
    """
    try:
        yield
    except pl.exceptions.PanicException as error:
        raise InputError(
            "a date or time cannot be written as a text, since its year is beyond 262,000; filter such rows out "
            "before the sink, or write Parquet"
        ) from error


def _is_bytes(dtype: pl.DataType) -> bool:
    return dtype == pl.Binary


def _text(values: pl.Expr) -> pl.Expr:
    return values.bin.encode("base64")


def _has(dtype: pl.DataType, is_wanted: Callable[[pl.DataType], bool]) -> bool:
    """Whether a type is wanted, or one within its lists and structs."""
    if isinstance(dtype, pl.List | pl.Array):
        return _has(_inner(dtype), is_wanted)
    if isinstance(dtype, pl.Struct):
        return any(_has(_inner(field), is_wanted) for field in dtype.fields)
    return is_wanted(dtype)


def _inner(dtype: pl.List | pl.Array | pl.Field) -> pl.DataType:
    found = dtype.dtype if isinstance(dtype, pl.Field) else dtype.inner
    return found() if isinstance(found, type) else found


def _changed(
    values: pl.Expr,
    dtype: pl.DataType,
    is_wanted: Callable[[pl.DataType], bool],
    change: Callable[[pl.Expr], pl.Expr],
) -> pl.Expr:
    """The same values with those of the wanted types changed, in lists and structs too."""
    if not _has(dtype, is_wanted):
        return values
    if isinstance(dtype, pl.Array):
        values, dtype = values.arr.to_list(), pl.List(dtype.inner)
    if isinstance(dtype, pl.List):
        return values.list.eval(_changed(pl.element(), _inner(dtype), is_wanted, change))
    if isinstance(dtype, pl.Struct):
        fields = [
            _changed(values.struct.field(field.name), _inner(field), is_wanted, change).alias(field.name)
            for field in dtype.fields
        ]
        return pl.when(values.is_not_null()).then(pl.struct(fields))
    return change(values)


class PartWriter(ABC):
    """Writes one part into a stream that somebody else opened and will close."""

    @property
    def held_bytes(self) -> int:
        """Return the bytes of rows that are held back."""
        return 0

    def spill(self) -> None:
        """Hold back nothing any more."""
        self.flush()

    @abstractmethod
    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows; some may be held back until :meth:`end`."""

    @abstractmethod
    def flush(self) -> None:
        """Bring out what need not be held back."""

    @abstractmethod
    def end(self) -> None:
        """Write what was held back, and the end of the part."""

    @abstractmethod
    def abandon(self) -> None:
        """Nobody wants the part; must not raise."""


class _Kept(io.RawIOBase):
    """A stream that does not close when the compressor that writes to it does."""

    def __init__(self, stream: Any) -> None:
        self._kept = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._kept.write(data)
        return len(data)


class _TextPart(PartWriter):
    """Text, compressed or not."""

    def __init__(self, stream: Any, schema: pa.Schema, compression: str | None) -> None:
        self._outer = stream
        # What frame_of asks of each batch is asked once.
        self._frame_of = frame_of if has_arrays(schema) else pl.DataFrame
        self._stream = (
            stream if compression is None else pa.CompressedOutputStream(_Kept(stream), compression)
        )

    @abstractmethod
    def _encode(self, frame: pl.DataFrame) -> bytes: ...

    def write(self, rows: pa.RecordBatch) -> None:
        """Write the lines."""
        self._stream.write(self._encode(self._frame_of(rows)))

    def flush(self) -> None:
        """Hand lines to the operating system."""
        if self._stream is self._outer:
            self._stream.flush()

    def end(self) -> None:
        """Write the end of the compressed stream."""
        if self._stream is not self._outer:
            self._stream.close()

    def abandon(self) -> None:
        """Release the compressor."""
        if self._stream is not self._outer:
            with contextlib.suppress(OSError, ValueError):
                self._stream.close()


class JsonLinesPart(_TextPart):
    """A part of JSON lines, with one object a line."""

    def _encode(self, frame: pl.DataFrame) -> bytes:
        return frame_lines(frame)


class CsvPart(_TextPart):
    """RFC 4180, with the names of the columns in the first line; a null is empty, an empty string ``""``."""

    def __init__(self, stream: Any, schema: pa.Schema, compression: str | None, separator: str) -> None:
        super().__init__(stream, schema, compression)
        self._separator = separator
        self._is_begun = False

    def _encode(self, frame: pl.DataFrame) -> bytes:
        out = io.BytesIO()
        with naming_years():
            frame = with_whole_minutes(frame)
            frame.write_csv(out, separator=self._separator, include_header=not self._is_begun)
        self._is_begun = True
        return out.getvalue()
