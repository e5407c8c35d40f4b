"""How a CSV file is written, and the names in its header."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """How a file is written; ``weir.Csv`` has the words.

    Attributes:
        delimiter: one ASCII character.
        quote: one ASCII character, or "" for none.
        null_values: unquoted fields that are null.
        escape: one ASCII character, which in quoted fields stands before quotes and itself, or "" for none.
        one_line: no field holds a newline.
        record_bytes_max: longer records are bad.
    """

    delimiter: str = ","
    quote: str = '"'
    null_values: tuple[str, ...] = ("",)
    one_line: bool = False
    record_bytes_max: int = 8 << 20
    escape: str = ""


def header_fields(data: bytes, form: CsvFormat, at_end: bool) -> tuple[list[str], int] | None:
    """The fields of the record at the beginning of a file, and its end; None: it is not whole yet.

    Args:
        data: the beginning of the file, without a byte order mark.
        form: how the file is written.
        at_end: there is no more.

    Raises:
        ValueError: its quotes or its UTF-8 are wrong; the message says which.
    """
    delimiter, quote = form.delimiter.encode(), form.quote.encode()
    fields: list[str] = []
    at = 0
    while True:
        if quote and data.startswith(quote, at):
            found = _quoted(data, at + 1, quote, form.escape.encode(), at_end)
            if found is None:
                return None
            content, at = found
        else:
            ends = [end for end in (data.find(delimiter, at), data.find(b"\n", at)) if end >= 0]
            if not ends and not at_end:
                return None
            end = min(ends, default=len(data))
            content = data[at:end]
            if data[end : end + 1] != delimiter:
                content = content.removesuffix(b"\r")
            if quote and quote in content:
                raise ValueError("a quote is in the wrong place")
            at = end
        fields.append(content.decode())
        rest = data[at : at + 2]
        if rest[:1] == delimiter:
            at += 1
        elif rest[:1] == b"\n" or rest == b"\r\n" or not rest:
            if not rest and not at_end:
                return None
            return fields, at + (2 if rest == b"\r\n" else len(rest[:1]))
        elif rest == b"\r" and not at_end:
            return None
        else:
            raise ValueError("a quote is in the wrong place")


def _quoted(data: bytes, at: int, quote: bytes, escape: bytes, at_end: bool) -> tuple[bytes, int] | None:
    """What a quoted field holds whose opening quote is before ``at``, and where it ends; None: it is not whole yet."""
    content = b""
    while True:
        end = data.find(quote, at)
        escaped = data.find(escape, at, end) if escape and end >= 0 else -1
        if escaped >= 0:
            following = data[escaped + 1 : escaped + 2]
            is_one = following in (quote, escape)
            content += data[at:escaped] + (following if is_one else escape)
            at = escaped + 1 + is_one
            continue
        if end < 0 or (end + 1 == len(data) and not at_end):
            if at_end:
                raise ValueError("a quote is not closed")
            return None
        content += data[at:end]
        at = end + 1
        if not data.startswith(quote, at):
            return content, at
        content += quote
        at += 1
