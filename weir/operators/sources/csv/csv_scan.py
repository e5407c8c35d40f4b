"""A Numba kernel that reads records of CSV straight into columns.

It says of every record whether it is good, and why not. A record ends with a newline (LF or CRLF) outside quotes. A
field that begins with the quote ends with the next one that is not doubled, and the delimiter or the record's end must
follow; a quote anywhere else is a mistake. After such a mistake nothing is certain about the quotes, so that the record
is taken to be its first line; a record that is too long, too. Empty lines are passed over. Where there is an escape, it
may stand before a quote instead of another one, and before itself; before anything else it is a character like others.

``data`` must be readable for ``PADDING_BYTES`` after the range given: bytes are read up to 64 at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weir.kernels.bytes import byte_at, load8
from weir.kernels.declare import byte_kernel, byte_kernel_part
from weir.kernels.kernel_types import BOOL, BYTES, FLOATS, INT, INTS, INTS_2D, OFFSETS, TYPES
from weir.kernels.text_masks import line_end
from weir.operators.sources.csv.csv_tokens import (
    BAD_FIELDS,
    BAD_NULL,
    BAD_QUOTE,
    BAD_UTF8,
    BAD_VALUE,
    FIELD_MISPLACED,
    FIELD_QUOTED,
    GOOD,
    OPEN_QUOTE,
    OUT_OF_RANGE,
    TOO_LONG,
    decimal,
    integer,
    is_null,
    plain_field,
    quoted_field,
    rest_of_record,
    skip_fields,
    truth,
)
from weir.operators.sources.lines.value_texts import eight_digits, is_eight_digits

#: Kinds of columns. A late value is only found, and its place is noted.
KIND_INT, KIND_FLOAT, KIND_BOOL, KIND_TEXT, KIND_LATE = range(5)
#: Columns of the table of columns.
(
    COLUMN_KIND,
    #: Index among the numbers; of texts, where their offsets begin.
    COLUMN_SLOT,
    #: Least and greatest integer.
    COLUMN_LOW,
    COLUMN_HIGH,
    #: Where a text column begins in ``texts``.
    COLUMN_TEXT,
    #: 1: may be null.
    COLUMN_NULLABLE,
    #: Filled: how many are null.
    COLUMN_NULLS,
) = range(7)
#: Columns of the bad records: range, why, the field that it is about or how many there are, good rows before it.
BAD_START, BAD_STOP, BAD_WHY, BAD_FIELD, BAD_ROW = range(5)


#: More than a record can have.
_ALL_FIELDS = 1 << 40


class Writing(NamedTuple):
    """How records are written."""

    #: The byte between fields.
    delimiter: int
    #: The byte around fields; negative: there are no quotes.
    quote: int
    #: The byte before quotes, and before itself, in quoted fields; negative: there is none.
    escape: int
    #: A quoted field may not hold a newline.
    one_line: bool
    #: Longer records are bad.
    record_bytes_max: int
    #: Int64, shape (fields of a record,): the wanted column that a field belongs to; or, negative, how many fields
    #: from this one on belong to none.
    columns: np.ndarray
    #: Whether the empty field is null, too.
    empty_is_null: bool
    #: Uint8, the null values that are not empty, concatenated and padded; int64, where each begins, and the end.
    nulls: np.ndarray
    null_offsets: np.ndarray


class Columns(NamedTuple):
    """Where values go. The arrays are flat because views made inside a kernel cost reference counts."""

    #: Rows that a column has room for.
    rows_max: int
    #: Int64, shape (columns, 8): ``COLUMN_KIND`` and so on.
    table: np.ndarray
    #: Int64, shape (number columns * rows_max,): integers, and bools as 0 or 1. The same memory as float64.
    numbers: np.ndarray
    decimals: np.ndarray
    #: Int32, shape (text columns * (rows_max + 1),); each column starts with 0. Of one row, shape (text columns + 1,),
    #: all 0: each column may begin where the one before it ends.
    offsets: np.ndarray
    #: Uint8; each text column has room for all bytes that are read and padding; of one row all of them together.
    texts: np.ndarray
    #: Uint8, shape (columns * rows_max,), all 1; 0 where a value is null.
    valid: np.ndarray
    #: Int64, shape (rows_max * (float and late columns), 4); filled with column, row, start and end.
    late: np.ndarray


_WRITING = TYPES.NamedTuple((INT, INT, INT, BOOL, INT, INTS, BOOL, BYTES, INTS), Writing)
_COLUMNS = TYPES.NamedTuple((INT, INTS_2D, INTS, FLOATS, OFFSETS, BYTES, BYTES, INTS_2D), Columns)


@byte_kernel_part
def _put(
    data: np.ndarray,
    start: int,
    stop: int,
    column: int,
    row: int,
    to: Columns,
    late_count: int,
) -> tuple[int, int]:
    """Put a value that is not text into its column: ``GOOD`` or why not, and how many values are in ``late``."""
    kind = to.table[column, COLUMN_KIND]
    cell = to.table[column, COLUMN_SLOT] * to.rows_max + row
    if kind == KIND_INT:
        number, why = integer(data, start, stop)
        if why == GOOD and (number < to.table[column, COLUMN_LOW] or number > to.table[column, COLUMN_HIGH]):
            why = OUT_OF_RANGE
        to.numbers[cell] = number
        return why, late_count
    if kind == KIND_BOOL:
        value = truth(data, start, stop)
        to.numbers[cell] = value
        return GOOD if value >= 0 else BAD_VALUE, late_count
    if kind == KIND_FLOAT:
        real, why, is_late = decimal(data, start, stop)
        to.decimals[cell] = real
        if not is_late or why != GOOD:
            return why, late_count
        if byte_at(data, start) == 0x2B:
            start += 1
    to.late[late_count, 0] = column
    to.late[late_count, 1] = row
    to.late[late_count, 2] = start
    to.late[late_count, 3] = stop
    return GOOD, late_count + 1


@byte_kernel_part
def _scan_record(
    data: np.ndarray,
    at: int,
    stop: int,
    row: int,
    quotes: np.uint64,
    escape: int,
    form: Writing,
    columns: Columns,
    late_count: int,
) -> tuple[int, int, int, int]:
    """Read the record that starts at ``at`` into a row.

    ``escape``: the byte before quotes in quoted fields; the quote: nothing else is; negative: there are no quotes.

    Returns:
        Position after it; ``GOOD`` or why not; the field that this is about; and how many values are in ``late``.
    """
    quote = int(quotes & np.uint64(0xFF))
    has_quote = escape >= 0
    is_doubled = escape < 0 or escape == quote
    why = GOOD
    about = 0
    field = 0
    wanted, delimiter = form.columns, form.delimiter
    wanted_count = len(wanted)
    has_nulls = len(form.null_offsets) > 1
    table, numbers, rows_max = columns.table, columns.numbers, columns.rows_max
    offsets, texts, valid = columns.offsets, columns.texts, columns.valid
    while True:
        column = wanted[field] if field < wanted_count else -1
        if column < 0:
            # As many as are not wanted; of the last ones all that there are.
            limit = -column if field - column < wanted_count else _ALL_FIELDS
            if limit == _ALL_FIELDS and field < wanted_count and is_doubled:
                end, count = rest_of_record(data, at, stop, delimiter, quote, has_quote)
                if end >= 0 and field + count == wanted_count:
                    return end + 1, why, about, late_count
            skipped, at = skip_fields(data, at, limit, delimiter, quote)
            field += skipped
            if skipped == limit:
                continue
        kind = table[column, COLUMN_KIND] if column >= 0 else -1
        start = at
        if kind == KIND_INT:
            # The usual form, read once; everything else is looked at again below.
            number = np.int64(0)
            word = load8(data, at)
            if is_eight_digits(word):
                number = eight_digits(word)
                at += 8
            digit = byte_at(data, at) - 48
            while 0 <= digit <= 9:
                number = number * 10 + digit
                at += 1
                digit = byte_at(data, at) - 48
            is_sure = (
                0 < at - start <= 18 and table[column, COLUMN_LOW] <= number <= table[column, COLUMN_HIGH]
            )
            if is_sure and has_nulls:
                # A number may stand for null.
                is_sure = not is_null(data, start, at, False, form.nulls, form.null_offsets)
            if is_sure:
                numbers[table[column, COLUMN_SLOT] * rows_max + row] = number
                if digit + 48 == delimiter:
                    field += 1
                    at += 1
                    continue
                if digit + 48 == 0x0A:
                    field += 1
                    break
            at = start
        copies = kind == KIND_TEXT
        to = 0
        begin = 0
        if copies:
            begin = table[column, COLUMN_SLOT] + row
            to = table[column, COLUMN_TEXT] + offsets[begin]
        is_quoted = has_quote and byte_at(data, at) == quote
        if is_quoted:
            start = at + 1
            at, state, end, to_end, utf8_right = quoted_field(
                data, start, stop, delimiter, quotes, escape, copies, texts, to
            )
            if form.one_line and line_end(data, start) < end:
                return at, OPEN_QUOTE, field, late_count
            if state != FIELD_QUOTED:
                return at, BAD_QUOTE if state == FIELD_MISPLACED else OPEN_QUOTE, field, late_count
        else:
            at, quotes_right, utf8_right = plain_field(data, at, delimiter, quote, copies, texts, to)
            if has_quote and not quotes_right:
                return at, BAD_QUOTE, field, late_count
            end = at
            if byte_at(data, at) == 0x0A and end > start and byte_at(data, end - 1) == 0x0D:
                end -= 1
            to_end = to + end - start
        if not utf8_right and why == GOOD:
            why = BAD_UTF8
            about = field
        if column >= 0 and why == GOOD:
            may_be_null = not is_quoted or kind != KIND_TEXT
            if may_be_null and is_null(data, start, end, form.empty_is_null, form.nulls, form.null_offsets):
                valid[column * rows_max + row] = 0
                table[column, COLUMN_NULLS] += 1
                to_end = to
                if table[column, COLUMN_NULLABLE] == 0:
                    why = BAD_NULL
                elif kind <= KIND_BOOL:
                    numbers[table[column, COLUMN_SLOT] * rows_max + row] = 0
            elif not copies:
                why, late_count = _put(data, start, end, column, row, columns, late_count)
            if why != GOOD:
                about = field
            if copies:
                offsets[begin + 1] = to_end - table[column, COLUMN_TEXT]
        field += 1
        if byte_at(data, at) == 0x0A:
            break
        at += 1
    if field != wanted_count:
        # How many there are says more than what is wrong in one of them.
        return at + 1, BAD_FIELDS, field, late_count
    return at + 1, why, about, late_count


@byte_kernel(TYPES.UniTuple(INT, 4)(BYTES, INT, INT, BOOL, _WRITING, _COLUMNS, INTS_2D, INTS))
def scan_records(
    data: np.ndarray,
    start: int,
    stop: int,
    may_be_more: bool,
    form: Writing,
    columns: Columns,
    bad: np.ndarray,
    starts: np.ndarray,
) -> tuple[int, int, int, int]:
    """Read records into columns until ``stop``, or until there are ``rows_max``.

    Args:
        data: uint8, shape (bytes + PADDING_BYTES,).
        start: position of the first record.
        stop: end of the lines; ``data[stop - 1]`` is a newline.
        may_be_more: the record in which ``stop`` is may go on; False: a quote that is open there is never closed.
        form: how records are written.
        columns: where values go.
        bad: int64, shape (rows_max, 5); filled: ``BAD_START`` and so on.
        starts: int64, shape (rows_max,); filled with the start of each row's record.

    Returns:
        Position after the last record read (``start``: the first one is not whole), rows, bad records, late values.
    """
    one = np.uint64(0x0101010101010101)
    rows_max, table, valid = columns.rows_max, columns.table, columns.valid
    one_line, record_bytes_max = form.one_line, form.record_bytes_max
    has_quote = form.quote >= 0
    # Where there are no quotes, the newline stands in their place: it ends a field anyway.
    quotes = np.uint64(form.quote if has_quote else 0x0A) * one
    meaning = -1 if not has_quote else form.quote if form.escape < 0 else form.escape
    at = start
    row = 0
    bad_count = 0
    late_count = 0
    while at < stop and row + bad_count < rows_max:
        byte = byte_at(data, at)
        if byte == 0x0A:
            at += 1
            continue
        if byte == 0x0D and byte_at(data, at + 1) == 0x0A:
            at += 2
            continue
        after, why, about, late_after = _scan_record(
            data, at, stop, row, quotes, meaning, form, columns, late_count
        )
        if why != GOOD or after - at > record_bytes_max:
            # What the record left in its row is not there any more.
            for column in range(len(table)):
                if valid[column * rows_max + row] == 0:
                    valid[column * rows_max + row] = 1
                    table[column, COLUMN_NULLS] -= 1
        if why == OPEN_QUOTE and may_be_more and not one_line and after - at <= record_bytes_max:
            break
        # The same whatever part of the file is at hand: so much of it decides, and no more.
        if after - at > record_bytes_max:
            why = TOO_LONG
        if why in (BAD_QUOTE, OPEN_QUOTE, TOO_LONG):
            after = line_end(data, at) + 1
        if why == GOOD:
            starts[row] = at
            row += 1
            late_count = late_after
        else:
            bad[bad_count, BAD_START] = at
            bad[bad_count, BAD_STOP] = after
            bad[bad_count, BAD_WHY] = why
            bad[bad_count, BAD_FIELD] = about
            bad[bad_count, BAD_ROW] = row
            bad_count += 1
        at = after
    return at, row, bad_count, late_count
