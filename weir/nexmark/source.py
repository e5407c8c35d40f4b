"""Gives a stream of the auction to subtasks: splits that go through event time side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from typing_extensions import override

from weir.author.operator import Json, SourceReader
from weir.author.source import Source
from weir.nexmark.events import Events
from weir.nexmark.model import EVENTS_PER_EPOCH, PLACES, stream_numbers
from weir.nexmark.specs import NexmarkSpec
from weir.operators.sources.user.user_source import UserSourceReader

#: Rows that are made at a time, about.
_ROWS = 16_384


def create_reader(spec: NexmarkSpec) -> SourceReader:
    """The reader of the stream; for ``weir.operators.registry``."""
    return UserSourceReader(spec, NexmarkSource(spec))


class NexmarkSource(Source):
    """A split is every n-th block of epochs; a position is the number of the split's next block."""

    def __init__(self, spec: NexmarkSpec) -> None:
        """Make nothing yet."""
        self._spec = spec
        first, stop = PLACES[spec.stream]
        self._block_epochs = max(1, _ROWS // (stop - first))
        epochs = -(-spec.events // EVENTS_PER_EPOCH)
        self._blocks = -(-epochs // self._block_epochs)

    @override
    def splits(self) -> Sequence[Json]:
        return list(range(min(self._spec.splits, self._blocks)))

    @override
    def read(self, split: Json, position: Json) -> Iterator[tuple[pa.RecordBatch, Json]]:
        spec, epochs = self._spec, self._block_epochs
        columns = spec.schema_read.names
        for block in range(split if position is None else position, self._blocks, spec.splits):
            numbers = stream_numbers(spec.stream, block * epochs, epochs, spec.events)
            events = Events(numbers, spec.seed, spec.first_ms, spec.events_per_second)
            yield events.batch(spec.stream, columns), block + spec.splits
