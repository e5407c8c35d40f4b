"""Checks of what a job's author says about CSV files; called when the source is made."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import GraphError

#: What may be in a number or a word, and so cannot separate fields.
_NO_SEPARATORS = frozenset("\r\n.+-_")


def check_csv_format(
    schema: pa.Schema,
    delimiter: object,
    quote: object,
    escape: object,
    null_values: object,
    line_bytes_max: int,
) -> None:
    """Check that fields can be told apart, and that every column can be made of a text.

    Raises:
        GraphError: not so; the message has no step.
    """
    _check_character("delimiter", delimiter, "one ASCII character that is in no number, such as ',' or '\\t'")
    if quote is not None:
        _check_character("quote", quote, "one ASCII character that is in no number, such as '\"', or None")
    if quote == delimiter:
        raise GraphError(f"quote and delimiter are both {quote!r}; they must differ")
    if escape is not None:
        if quote is None or escape in (quote, delimiter):
            raise GraphError(
                f"escape is {escape!r}; it stands before quotes in fields, so it must differ from quote and delimiter"
            )
        _check_character(
            "escape", escape, "one ASCII character that is in no number, such as '\\\\', or None"
        )
    if isinstance(null_values, str) or not all(isinstance(value, str) for value in _items(null_values)):
        raise GraphError(f"null_values is {null_values!r}; give a list of texts, such as ['', 'NULL']")
    if line_bytes_max < 1:
        raise GraphError(f"line_bytes_max is {line_bytes_max!r}; it must be at least 1")
    check_csv_types(schema)


def check_csv_types(schema: pa.Schema) -> None:
    """Refuse columns of types that fields of CSV are not read as.

    Raises:
        GraphError: names the column; the message has no step.
    """
    for field in schema:
        try:
            pc.cast(pa.array([], pa.string()), field.type)
        except pa.ArrowException as error:
            raise GraphError(
                f"schema: column {field.name!r}: a field of CSV cannot be {field.type}; read it as str, and convert it"
            ) from error


def csv_fields(
    schema: pa.Schema, header: object, columns: Sequence[str] | None, path: str
) -> tuple[str, ...]:
    """The names of a record's fields, in order; none if the files say them.

    Columns of the schema that are not among them are in the names of folders, if the path can lead to such.

    Raises:
        GraphError: they do not go with the schema.
    """
    if not isinstance(header, bool):
        raise GraphError(f"header is {header!r}; it is True or False")
    if header:
        if columns is not None:
            raise GraphError("columns is for files without a header; give header=False, or leave columns out")
        return ()
    fields = tuple(schema.names if columns is None else _items(columns))
    may_be_in_folders = any(mark in path for mark in "=*?[")
    for name in schema.names:
        if fields.count(name) != 1 and not (may_be_in_folders and name not in fields):
            count = "not" if name not in fields else "twice"
            raise GraphError(
                f"columns: {name!r} of the schema is {count} among {', '.join(map(str, fields))}"
            )
    return fields


def _items(value: object) -> list[object]:
    return list(value) if isinstance(value, Sequence) else [None]


def _check_character(setting: str, value: object, mend: str) -> None:
    good = isinstance(value, str) and len(value) == 1 and value.isascii() and not value.isalnum()
    if not good or value in _NO_SEPARATORS:
        raise GraphError(f"{setting} is {value!r}; it must be {mend}")
