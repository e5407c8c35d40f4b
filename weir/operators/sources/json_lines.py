"""The JSON-lines source."""

from __future__ import annotations

import numpy as np

from weir.operators.sources.json_decode import Decoded, JsonDecoder
from weir.operators.sources.line_reader import LineReader
from weir.operators.sources.line_shapes import SHAPE_BLANK, cut_lines, line_shapes
from weir.operators.sources.line_source import LineSource
from weir.operators.sources.splits import Split
from weir.specs import JsonLinesSpec


class JsonLinesReader(LineSource):
    """Reads one subtask's splits of JSON-lines files; ``json_strict`` defines which lines are good.

    Blank lines are passed over.
    """

    def __init__(self, spec: JsonLinesSpec) -> None:
        super().__init__(spec)
        self._spec = spec

    def _read_shares(self, shares: list[list[Split]]) -> None:
        super()._read_shares(shares)
        time_column = self._spec.event_time_column
        self._decoder = JsonDecoder(
            self._spec.schema_read,
            required=[] if time_column is None else [time_column],
            line_bytes_max=self._spec.line_bytes_max,
            lines_max=self.rows_decoded_max,
            paths={
                column: path for column, path in self._spec.paths if column in self._spec.schema_read.names
            },
        )

    def _begin_split(self, reader: LineReader) -> None:
        """Lines of all files are alike."""

    def _decode_lines(self, reader: LineReader, may_be_more: bool) -> Decoded:
        return self._decoder.decode(reader.data, reader.start, reader.stop, self.rows_wanted)

    def _line_of_row(self, reader: LineReader, row: int) -> int:
        lines = np.empty((self.rows_decoded_max, 3), dtype=np.int64)
        _, count = cut_lines(reader.data, self._decoded_start, reader.start, len(lines), lines)
        if self._batch is not None and count == self._batch.num_rows:
            return int(lines[row, 0])
        shapes = np.empty(count, dtype=np.uint8)
        line_shapes(reader.data, lines, count, self._spec.line_bytes_max, shapes)
        bad = [rejection.start for rejection in self._decoded.rejections] if self._decoded else []
        gave_row = (shapes != SHAPE_BLANK) & ~np.isin(lines[:count, 0], bad)
        return int(lines[np.flatnonzero(gave_row)[row], 0])
