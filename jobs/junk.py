"""Ballast for the demo job: state that is far larger than a count and rewritten at every event."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

import weir

#: Characters of one entry.
JUNK_CHARACTERS = 6_890
#: Bytes of values that are made before they are handed to the state, whatever the size of the batch.
_PIECE_BYTES_MAX = 4 << 20


class JunkRewriter(weir.KeyedProcess):
    """Rewrites all entries of a row's key, for every row, then passes the rows on.

    Entry ``i`` of a key is kept under the key's bytes followed by ``i`` as four big-endian bytes. Its value is the
    entry's number and the row's running count, filled up with dots.
    """

    def __init__(self, entries: int, count_column: str = "count") -> None:
        """Remember how many entries a key has and the int64 column that makes each value a new one."""
        self._suffixes = [index.to_bytes(4, "big") for index in range(entries)]
        self._count_column = count_column
        self._rows_max = max(1, _PIECE_BYTES_MAX // (JUNK_CHARACTERS * entries))

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The very input.

        Raises:
            StateError: the store cannot be written.
        """
        groups, keys = self.keys(batch)
        counts = batch.column(self._count_column).to_pylist()
        for start in range(0, batch.num_rows, self._rows_max):
            stop = start + self._rows_max
            for index, suffix in enumerate(self._suffixes):
                self.keyed_state.put_many(
                    groups[start:stop],
                    [key + suffix for key in keys[start:stop]],
                    [junk_value(index, count) for count in counts[start:stop]],
                )
        return (batch,)


def junk_value(index: int, count: int) -> bytes:
    """What entry ``index`` holds after its key's ``count``-th event; ``JUNK_CHARACTERS`` bytes."""
    return (b"%d:%d" % (index, count)).ljust(JUNK_CHARACTERS, b".")
