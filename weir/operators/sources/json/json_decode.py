"""The way from bytes of JSON lines to record batches: the scanner, then the strict parsers for what it leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weir.kernels.behind import KernelBehind
from weir.operators.sources.json.json_columns import ScanColumns
from weir.operators.sources.json.json_scan import scan_lines
from weir.operators.sources.json.json_strict import DecodedLines, Rejection, StrictDecoder
from weir.operators.sources.lines.line_shapes import cut_lines
from weir.rows.nested_paths import Path

#: Compiling it takes as long as all other kernels of a small job; the strict parsers give the same rows meanwhile.
_SCANNER = KernelBehind(scan_lines)


@dataclass(frozen=True, slots=True)
class Decoded:
    """Result of one call: rows in line order, rejected lines in line order, and where to go on."""

    batch: pa.RecordBatch
    rejections: list[Rejection]
    next_start: int
    #: int64, shape (rows,): where the record of each row begins; None: the decoder does not note it.
    starts: np.ndarray | None = None


class JsonDecoder:
    """Decodes JSON lines for one schema; ``weir.operators.sources.json.json_strict`` defines which lines are good.

    Not thread-safe: it keeps scratch arrays. The batches that it returns share no memory with them.

    Args:
        schema: the user columns.
        required: fields that may not be null besides those that are not nullable in the schema.
        line_bytes_max: longer lines are rejected.
        lines_max: lines that one call reads at most.
        use_scanner: False leaves all lines to the strict parsers (for tests and comparisons).
        paths: of columns that are not the lines' own fields, what leads to them.
    """

    def __init__(
        self,
        schema: pa.Schema,
        required: Sequence[str] = (),
        line_bytes_max: int = 8 << 20,
        lines_max: int = 32_768,
        use_scanner: bool = True,
        paths: Mapping[str, Path] | None = None,
    ) -> None:
        needed = [f.name for f in schema if not f.nullable or f.name in required]
        self._schema = schema
        self._line_bytes_max = line_bytes_max
        self._lines_max = lines_max
        self._strict = StrictDecoder(schema, needed, line_bytes_max, paths or {})
        self._lines = np.empty((lines_max, 3), dtype=np.int64)
        self._columns = ScanColumns.make(schema, needed, paths or {}, lines_max) if use_scanner else None

    def decode(self, data: np.ndarray, start: int, stop: int, wanted: int | None = None) -> Decoded:
        """Decode at most ``lines_max`` lines of ``data[start:stop]``.

        Args:
            data: uint8; readable for ``PADDING_BYTES`` after ``stop``; ``data[stop - 1]`` is a newline.
            start: position of the first line.
            stop: end of the last line.
            wanted: decode no more lines than this.
        """
        lines_max = self._lines_max if wanted is None else min(wanted, self._lines_max)
        columns = self._columns
        if columns is None or not (_SCANNER.is_ready or _SCANNER.look()):
            return self._decode_strictly(data, start, stop, lines_max)
        stop = columns.fitting(data, start, stop)
        columns.reserve(stop - start)
        after, rows, unsure, late = scan_lines(
            data,
            start,
            stop,
            min(lines_max, columns.cells.rows_max),
            self._line_bytes_max,
            columns.entries,
            columns.cells,
            self._lines,
            columns.starts,
        )
        fast, good = columns.batch(data, rows, late)
        if not good.all():
            fast = fast.filter(pa.array(good))
            unsure = self._leave_to_strict(data, start, after, columns.starts[:rows], good, unsure)
        if not unsure:
            return Decoded(fast, [], after)
        slow = self._strict.decode(data, self._lines, unsure)
        return Decoded(self._merge(fast, slow), slow.rejections, after)

    def _decode_strictly(self, data: np.ndarray, start: int, stop: int, lines_max: int) -> Decoded:
        """Decode lines without the scanner."""
        after, count = cut_lines(data, start, stop, lines_max, self._lines)
        slow = self._strict.decode(data, self._lines, count)
        if self._columns is not None:
            _SCANNER.did_without(count)
        return Decoded(slow.batch, slow.rejections, after)

    def _leave_to_strict(
        self, data: np.ndarray, start: int, stop: int, starts: np.ndarray, good: np.ndarray, unsure: int
    ) -> int:
        """Add the lines of rows that turned out not to be good to those that are not certain; returns their number."""
        lines = np.empty((self._lines_max, 3), dtype=np.int64)
        _, count = cut_lines(data, start, stop, self._lines_max, lines)
        not_certain = np.union1d(self._lines[:unsure, 0], starts[~good])
        chosen = lines[:count][np.isin(lines[:count, 0], not_certain)]
        chosen[:, 2] = np.searchsorted(starts[good], chosen[:, 0])
        self._lines[: len(chosen)] = chosen
        return len(chosen)

    def _merge(self, fast: pa.RecordBatch, slow: DecodedLines) -> pa.RecordBatch:
        """Put the rows of unsure lines back where their lines were."""
        slow_rows = slow.batch.num_rows
        if slow_rows == 0:
            return fast
        rows = fast.num_rows + slow_rows
        places = self._lines[slow.line_indices, 2] + np.arange(slow_rows)
        order = np.empty(rows, dtype=np.int64)
        from_fast = np.ones(rows, dtype=np.bool_)
        from_fast[places] = False
        order[from_fast] = np.arange(fast.num_rows)
        order[places] = np.arange(fast.num_rows, rows)
        return pa.concat_batches([fast, slow.batch]).take(pa.array(order))
