"""Records that brokers keep, each of which is one JSON value, by the decoder of JSON lines."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from weir.operators.sources.json.json_decode import JsonDecoder

#: Why a record that is no row is none, for its dead letter.
NO_VALUE = "the record has no value"


def decode_records(
    decoder: JsonDecoder, buffer: np.ndarray, starts: np.ndarray, bad: dict[int, str]
) -> tuple[pa.RecordBatch, np.ndarray]:
    """Decode values, one line each.

    Args:
        decoder: of the values; takes as many lines at a time.
        buffer: uint8; each value, without a newline in it, and a newline; then ``PADDING_BYTES`` more.
        starts: where each value begins, and where the last one's line ends; int64, shape (values + 1,).
        bad: reasons by the number of the value; those found here are added.

    Returns:
        The rows, and the number of each one's value; int64, shape (rows,).
    """
    count, stop = len(starts) - 1, int(starts[-1])
    decoded = decoder.decode(buffer, 0, stop)
    assert decoded.next_start == stop
    rejected = np.array([rejection.start for rejection in decoded.rejections], dtype=np.int64)
    numbers = np.searchsorted(starts, rejected)
    for number, rejection in zip(numbers.tolist(), decoded.rejections, strict=True):
        bad.setdefault(number, rejection.reason)
    gave_row = np.ones(count, dtype=np.bool_)
    gave_row[numbers] = False
    if decoded.batch.num_rows < gave_row.sum():
        # Blank lines are passed over; a record is none.
        for number in range(count):
            text = buffer[starts[number] : starts[number + 1] - 1].tobytes()
            if not text.strip(b" \t\r"):
                gave_row[number] = False
                bad.setdefault(number, NO_VALUE if not text else "the value is blank")
    return decoded.batch, np.flatnonzero(gave_row)
