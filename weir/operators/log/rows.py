"""Turns rows into records of the log: ids, values and partitions; the columns at once, no row by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from weir.errors import InputError
from weir.keys.hashing import hash_keys, key_bytes
from weir.operators.sinks.text_parts import json_lines
from weir.rows.records import EVENT_TIME_COLUMN, user_columns
from weir.specs.log import LogSinkSpec

if TYPE_CHECKING:
    from weir.operators.kafka.coding import ValueEncoder

_NEWLINE = ord("\n")


class RowEncoder:
    """Makes records of one sink's rows.

    Args:
        spec: of the sink.
        step: its name, for messages.
        partitions: how many the topic has.
    """

    def __init__(self, spec: LogSinkSpec, step: str, partitions: int) -> None:
        self._spec, self._step, self._partitions = spec, step, partitions
        self._turn = 0
        self._encoder: ValueEncoder | None = None
        if spec.coding is not None:
            # Loaded only where it is needed.
            from weir.operators.kafka.coding import ValueEncoder

            self._encoder = ValueEncoder(spec.coding, spec.topic, f"sink {step}")

    def encode(self, rows: pa.RecordBatch) -> Iterator[tuple[int, np.ndarray, pa.Array]]:
        """Yield partition, ids (int64, shape (records,)) and values (large_binary, without nulls), in the rows' order.

        Args:
            rows: at least one; ``_event_time_ms`` is among the columns.

        Raises:
            InputError: a value or an id is null, or a partition is none.
        """
        ids, values = self._ids(rows), self._values(rows)
        numbers = self._numbers(rows)
        if numbers is None:
            self._turn = (self._turn + 1) % self._partitions
            yield self._turn, ids, values
            return
        if self._partitions == 1:
            yield 0, ids, values
            return
        order = np.argsort(numbers, kind="stable")
        bounds = np.searchsorted(numbers[order], np.arange(self._partitions + 1))
        for partition in range(self._partitions):
            start, stop = bounds[partition], bounds[partition + 1]
            if start < stop:
                chosen = order[start:stop]
                yield partition, ids[chosen], values.take(pa.array(chosen))

    def _ids(self, rows: pa.RecordBatch) -> np.ndarray:
        column = rows.column(EVENT_TIME_COLUMN if self._spec.id is None else self._spec.id)
        self._check_nulls(column, f"id {self._spec.id!r}")
        ids: np.ndarray = column.to_numpy().astype(np.int64, copy=False)
        return ids

    def _values(self, rows: pa.RecordBatch) -> pa.Array:
        if self._spec.value is not None:
            column = rows.column(self._spec.value)
            self._check_nulls(column, f"value {self._spec.value!r}")
            return column.cast(pa.large_binary())
        columns = rows.select([name for name in user_columns(rows.schema) if name != self._spec.partition])
        if self._encoder is not None:
            return pa.array(self._encoder.encode(columns), pa.large_binary())
        # Newlines within texts are escaped.
        lines = json_lines(columns)
        places = np.zeros(rows.num_rows + 1, dtype=np.int64)
        ends = np.flatnonzero(np.frombuffer(lines, dtype=np.uint8) == _NEWLINE)
        places[1:] = ends - np.arange(rows.num_rows)
        buffers = [None, pa.py_buffer(places), pa.py_buffer(lines.replace(b"\n", b""))]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), rows.num_rows, buffers)

    def _numbers(self, rows: pa.RecordBatch) -> np.ndarray | None:
        """Partitions of the rows; int64, shape (rows,). None: whichever."""
        spec = self._spec
        if spec.partition is not None:
            column = rows.column(spec.partition)
            self._check_nulls(column, f"partition {spec.partition!r}")
            numbers: np.ndarray = column.to_numpy().astype(np.int64, copy=False)
            wrong = numbers[(numbers < 0) | (numbers >= self._partitions)]
            if len(wrong):
                raise InputError(
                    f"sink {self._step}: topic {spec.topic} has no partition {wrong[0]}, which is in column "
                    f"{spec.partition!r}: its partitions are 0 to {self._partitions - 1}"
                )
            return numbers
        if spec.key is None:
            return None
        if self._partitions == 1:
            return np.zeros(rows.num_rows, dtype=np.int64)
        hashes = hash_keys(key_bytes(rows, [spec.key]))
        return (hashes % np.uint64(self._partitions)).astype(np.int64)

    def _check_nulls(self, column: pa.Array, what: str) -> None:
        if column.null_count:
            raise InputError(
                f"sink {self._step}: a row has null as {what}, which a record of the log cannot have; fill it in, or "
                "filter such rows out"
            )
