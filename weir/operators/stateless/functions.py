"""Operators around a job author's Python functions: map_batches, map and flat_map.

``_key_hash`` does not survive: a function may change the keys, and the next HASH exchange computes it
again. Both time columns do.

Nothing that a function remembers survives a restart, and rows since the last checkpoint come to it again: only
keyed state survives (:class:`weir.KeyedProcess`).
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import GeneratorType
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from weir.author.operator import Operator, OperatorContext, SetAside
from weir.errors import UserFunctionError
from weir.rows import row_watermarks
from weir.rows.python_rows import rows_batch
from weir.rows.python_values import row_dicts
from weir.rows.records import (
    BATCH_BYTES_MAX,
    EVENT_TIME_COLUMN,
    INGEST_TIME_COLUMN,
    as_authors_see,
    rough_bytes,
    system_schema,
    user_columns,
    watermarks_of,
)
from weir.rows.schemas import schema_difference, small_type
from weir.rows.utf8 import wrong_texts
from weir.specs import FlatMapSpec, MapBatchesSpec, MapSpec

_TIME_COLUMNS = (EVENT_TIME_COLUMN, INGEST_TIME_COLUMN)


class FunctionOperator(Operator):
    """What the three have in common: the function, the output schema and messages that name the step."""

    #: Whether the function hands out any number of rows.
    _yields = False

    def __init__(self, spec: MapBatchesSpec | MapSpec | FlatMapSpec) -> None:
        self._function: Callable[..., Any] = spec.function
        self._declare(spec.schema)
        self._step = spec.kind
        self._batch_size = 32_768
        #: Who handed out what is checked, for messages.
        self._did = "the function returned"
        #: Index of the row with which the function is called just now; None: with the batch.
        self._row_index: int | None = None

    def _declare(self, schema: pa.Schema) -> None:
        """The columns that leave the step."""
        self._user_schema = schema
        self._schema = system_schema(schema)
        self._names = frozenset(schema.names)
        self._required = [field.name for field in schema if not field.nullable]

    def open(self, context: OperatorContext) -> None:
        """Remember the step's name and where batches are cut."""
        self._step = context.operator_name
        self._batch_size = context.batch_size

    @abstractmethod
    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Zero or more batches of the declared columns and the time columns."""

    def _call(self, argument: object) -> Any:
        try:
            return self._function(argument)
        except Exception as error:
            raise self._raised(error) from error

    def _raised(self, error: Exception) -> UserFunctionError:
        """Tells what the function raised."""
        name = getattr(self._function, "__qualname__", type(self._function).__name__)
        return self._error(f"function {name} raised {type(error).__name__}: {error}")

    def _error(self, text: str) -> UserFunctionError:
        error = UserFunctionError(f"step {self._step!r}: {text}")
        error.row_index = self._row_index
        return error

    def _check_row(self, row: object) -> dict[str, Any]:
        if not isinstance(row, dict):
            # A dict that is returned, and not yielded, is gone through by its keys.
            mend = (
                "; yield each dict, or return a list of them" if self._yields and isinstance(row, str) else ""
            )
            raise self._error(f"the function returned {type(row).__name__}, not a dict of the columns{mend}")
        if row.keys() != self._names:
            missing = sorted(self._names - row.keys())
            extra = sorted(map(str, row.keys() - self._names))
            raise self._error(
                f"the function returned another row than declared: missing {missing}, extra {extra}"
            )
        return row

    def _build(self, rows: Sequence[dict[str, Any]], times: list[pa.Array]) -> pa.RecordBatch:
        try:
            user = rows_batch(rows, self._user_schema)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            reason = str(error).splitlines()[0]
            raise self._error(
                f"the function returned a value of another type than declared: {reason}"
            ) from error
        return self._finish(user, times)

    def _finish(self, user: pa.RecordBatch, times: list[pa.Array]) -> pa.RecordBatch:
        for name in self._required:
            if user.column(name).null_count:
                raise self._error(
                    f"{self._did} a null in column {name!r}; "
                    "declare it as weir.Nullable(...) if that is right"
                )
        return pa.RecordBatch.from_arrays([*user.columns, *times], schema=self._schema)


class MapBatchesOperator(FunctionOperator):
    """Calls the function with the batch; the result has the declared columns in any order."""

    knows_rows_by_time = True

    def __init__(self, spec: MapBatchesSpec) -> None:
        super().__init__(spec)
        self._spec = spec

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Zero or one batch; none if the function returns no rows."""
        batch = as_authors_see(batch)
        if self._spec.reads is not None:
            # Columns that nobody reads do not come.
            schema = self._spec.schema_of(batch.schema.names)
            if len(schema) != len(self._user_schema):
                self._declare(schema)
        return self.checked(self._call(batch), batch)

    def checked(self, result: object, batch: pa.RecordBatch | None) -> tuple[pa.RecordBatch, ...]:
        """What the function returned, as it leaves the step; none if it has no rows.

        Args:
            result: of the function.
            batch: whose rows' times the result takes if it has none and as many rows; None: it must have them.

        Raises:
            UserFunctionError: it is not what was declared.
        """
        result = as_batch(result)
        if not isinstance(result, pa.RecordBatch):
            raise self._error(
                f"{self._did} {type(result).__name__}, not a pyarrow.RecordBatch or a polars.DataFrame"
            )
        if len(set(result.schema.names)) != len(result.schema.names):
            raise self._error(f"{self._did} a column twice: {', '.join(result.schema.names)}")
        times = self._times(batch, result)
        present = [name for name in self._user_schema.names if name in result.schema.names]
        user = result.select(
            [*present, *(name for name in user_columns(result.schema) if name not in present)]
        )
        user = _with_small_types(user)
        difference = schema_difference(self._user_schema, user.schema)
        if difference:
            raise self._error(f"{self._did} another schema than declared: {difference}")
        self._check_texts(user, batch)
        return (self._finish(user, times),) if user.num_rows else ()

    def _check_texts(self, result: pa.RecordBatch, batch: pa.RecordBatch | None) -> None:
        """Refuse texts that are not UTF-8; those that the function was given are right."""
        for row, name in sorted(wrong_texts(result, batch).items()):
            raise self._error(f"{self._did} bytes in column {name!r} that are not UTF-8, in row {row}")

    def _times(self, batch: pa.RecordBatch | None, result: pa.RecordBatch) -> list[pa.Array]:
        times = []
        for name in _TIME_COLUMNS:
            if name in result.schema.names:
                column = result.column(name)
                if column.type != pa.int64() or column.null_count:
                    raise self._error(f"{self._did} {name!r} as {column.type}; it is int64 without nulls")
            elif batch is not None and result.num_rows == batch.num_rows:
                column = batch.column(name)
            elif batch is None:
                raise self._error(
                    f"rows emitted at a watermark or at the end need column {name!r}; add it with weir.with_times"
                )
            else:
                raise self._error(
                    f"{self._did} {result.num_rows} rows for {batch.num_rows} "
                    f"without column {name!r}; carry it over, so that every row keeps its time"
                )
            times.append(column)
        return times


def as_batch(made: object) -> object:
    """A frame of Polars as a record batch; anything else as it is."""
    if not isinstance(made, pl.DataFrame):
        return made
    table = made.to_arrow().combine_chunks()
    batches = table.to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)


def _with_small_types(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Large strings and the like, which Polars returns, in the form that channels carry."""
    types = [small_type(field.type) for field in batch.schema]
    if types == batch.schema.types:
        return batch
    columns = [
        column if column.type == dtype else column.cast(dtype)
        for column, dtype in zip(batch.columns, types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


#: Of a function that is called for each row: rows of its first batch, before it is known how long they are.
_ROWS_AT_FIRST = 1_024


class RowFunctionOperator(FunctionOperator):
    """Base of the two that call the function once per row with a dict of the user columns.

    What it returns leaves in batches of at most ``batch_size`` rows and about ``BATCH_BYTES_MAX`` bytes, so that a
    function that multiplies rows, or makes long ones, needs no more memory.
    """

    def __init__(self, spec: MapSpec | FlatMapSpec) -> None:
        super().__init__(spec)
        self._rows_max = _ROWS_AT_FIRST
        #: Columns whose values may be long.
        self._long_names = [field.name for field in spec.schema if _may_be_long(field.type)]

    @override
    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._rows_max = min(_ROWS_AT_FIRST, self._batch_size)

    @abstractmethod
    def _rows_of(self, row: dict[str, Any]) -> Iterable[dict[str, Any]]:
        """What the function makes of a row."""

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """What the function makes of each row; the rows get the times of that row."""
        results: list[dict[str, Any]] = []
        origins: list[int] = []
        size_bytes = 0
        for position, row in enumerate(row_dicts(batch.select(user_columns(batch.schema)))):
            self._row_index = position
            for result in self._rows_of(row):
                results.append(result)
                origins.append(position)
                size_bytes += self._long_bytes(result)
                if len(results) >= self._rows_max or size_bytes >= BATCH_BYTES_MAX:
                    self._row_index = None
                    yield self._gather(batch, results, origins)
                    results, origins, size_bytes = [], [], 0
                    self._row_index = position
        self._row_index = None
        if results:
            yield self._gather(batch, results, origins)

    def process_apart(self, batch: pa.RecordBatch, set_aside: SetAside) -> Iterator[pa.RecordBatch]:
        """Process rows without those at which the function raises; it is called once for each row.

        Raises:
            Exception: what ``set_aside`` did not take.
        """
        results: list[dict[str, Any]] = []
        origins: list[int] = []
        size_bytes = 0
        for position, row in self._rows_apart(batch, set_aside):
            self._row_index = position
            try:
                made = list(self._rows_of(row))
            except Exception as error:
                if not set_aside(batch.slice(position, 1), error):
                    raise
                continue
            results += made
            origins += [position] * len(made)
            size_bytes += sum(map(self._long_bytes, made))
            if len(results) >= self._rows_max or size_bytes >= BATCH_BYTES_MAX:
                yield from self._gather_apart(batch, results, origins, set_aside)
                results, origins, size_bytes = [], [], 0
        if results:
            yield from self._gather_apart(batch, results, origins, set_aside)

    def _rows_apart(self, batch: pa.RecordBatch, set_aside: SetAside) -> list[tuple[int, dict[str, Any]]]:
        """Rows with their numbers; without those that have a value that Python has not."""
        plain = batch.select(user_columns(batch.schema))
        try:
            return list(enumerate(row_dicts(plain)))
        except pa.ArrowInvalid:
            pass
        found = []
        for position in range(batch.num_rows):
            try:
                found.append((position, row_dicts(plain.slice(position, 1))[0]))
            except pa.ArrowInvalid as error:
                if not set_aside(batch.slice(position, 1), error):
                    raise
        return found

    def _gather_apart(
        self,
        batch: pa.RecordBatch,
        results: Sequence[dict[str, Any]],
        origins: Sequence[int],
        set_aside: SetAside,
    ) -> Iterator[pa.RecordBatch]:
        """Yield one batch; without the rows of which the function made something that is not as declared."""
        self._row_index = None
        try:
            yield self._gather(batch, results, origins)
            return
        except UserFunctionError:
            pass
        bad: set[int] = set()
        for position in dict.fromkeys(origins):
            made = [result for result, origin in zip(results, origins, strict=True) if origin == position]
            try:
                self._gather(batch, made, [position] * len(made))
            except UserFunctionError as error:
                if not set_aside(batch.slice(position, 1), error):
                    raise
                bad.add(position)
        kept = [number for number, origin in enumerate(origins) if origin not in bad]
        if kept:
            yield self._gather(
                batch, [results[number] for number in kept], [origins[number] for number in kept]
            )

    def _long_bytes(self, row: dict[str, Any]) -> int:
        """About how many bytes the long values of a row have: one row alone may have as many as a batch."""
        size_bytes = 0
        for name in self._long_names:
            value = row.get(name)
            size_bytes += len(value) if type(value) is str else value_bytes(value)
        return size_bytes

    def _gather(
        self, batch: pa.RecordBatch, rows: Sequence[dict[str, Any]], origins: Sequence[int]
    ) -> pa.RecordBatch:
        times = [batch.column(name) for name in _TIME_COLUMNS]
        watermarks_ms = watermarks_of(batch)
        if isinstance(origins, range):
            chosen: Any = slice(origins.start, origins.stop)
            times = [column.slice(origins.start, len(origins)) for column in times]
        else:
            chosen = np.array(origins, dtype=np.int64)
            times = [column.take(pa.array(chosen)) for column in times]
        made = self._build(rows, times)
        if watermarks_ms is not None:
            made = row_watermarks.with_column(made, watermarks_ms[chosen])
        size_bytes = max(1, rough_bytes(made)[0])
        self._rows_max = max(1, min(self._batch_size, made.num_rows * BATCH_BYTES_MAX // size_bytes))
        return made


def _may_be_long(dtype: pa.DataType) -> bool:
    return not pa.types.is_primitive(dtype)


def value_bytes(value: object) -> int:
    """About how many bytes a value of a row has; 0 for those of a fixed size, such as numbers."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(map(value_bytes, value.values()))
    if isinstance(value, list | tuple) and value:
        # Of numbers all have the same size.
        is_flat = isinstance(value[0], int | float)
        return 8 * len(value) + (0 if is_flat else sum(map(value_bytes, value)))
    return 0


class MapOperator(RowFunctionOperator):
    """Calls the function once per row with a dict of the user columns."""

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Return as many rows, as the base class does, but faster."""
        rows = row_dicts(batch.select(user_columns(batch.schema)))
        self._row_index = None
        start = 0
        while start < len(rows):
            results = self._call_with(rows, start)
            yield self._gather(batch, results, range(start, start + len(results)))
            start += len(results)

    def _call_with(self, rows: Sequence[dict[str, Any]], start: int) -> list[dict[str, Any]]:
        """What the function makes of rows from one on, as many as one batch has.

        :meth:`_call`, :meth:`_check_row` and :meth:`_long_bytes` by hand: three calls less for each row.
        """
        function, names, long_names = self._function, self._names, self._long_names
        results: list[dict[str, Any]] = []
        size_bytes = 0
        for row in itertools.islice(rows, start, start + self._rows_max):
            try:
                made = function(row)
            except Exception as error:
                self._row_index = start + len(results)
                raise self._raised(error) from error
            if not isinstance(made, dict) or made.keys() != names:
                self._row_index = start + len(results)
                self._check_row(made)
            # The function may change its dict, and return it again.
            results.append(made.copy())
            for name in long_names:
                value = made[name]
                size_bytes += len(value) if type(value) is str else value_bytes(value)
            if size_bytes >= BATCH_BYTES_MAX:
                break
        return results

    def _rows_of(self, row: dict[str, Any]) -> Iterable[dict[str, Any]]:
        return (self._check_row(self._call(row)).copy(),)


#: What a function of flat_map mostly returns, and what is no list of rows though it can be iterated over.
_PLAIN_RESULTS = frozenset((list, tuple, GeneratorType))
_NO_RESULTS = (str, bytes, Mapping)


class FlatMapOperator(RowFunctionOperator):
    """Calls the function once per row; its rows get the times of that row."""

    _yields = True

    def _rows_of(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The function's rows; a generator runs here, so its errors are the function's too."""
        results = self._call(row)
        is_plain = type(results) in _PLAIN_RESULTS
        if not is_plain and (isinstance(results, _NO_RESULTS) or not isinstance(results, Iterable)):
            raise self._error(f"the function returned {type(results).__name__}, not an iterable of dicts")
        iterator = iter(results)
        while True:
            try:
                result = next(iterator)
            except StopIteration:
                return
            except Exception as error:
                raise self._raised(error) from error
            # The function may change its dict, and yield it again.
            yield self._check_row(result).copy()
