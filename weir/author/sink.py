"""The base of sinks that a job's author writes and that need no transactions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

import pyarrow as pa

from weir.author.operator import Operator, OperatorContext


class Sink(Operator):
    """A sink of your own: at least once; exactly once in effect if writing a row twice is the same as once.

    After a restart rows since the last complete checkpoint are written again. Where that must not be seen, and
    rows have no key to overwrite by, take :class:`weir.TwoPhaseSink`.

    One subtask has one Sink and calls it in one thread: ``open``, then ``write`` and ``flush`` in turn, ``close``.
    """

    def open(self, context: OperatorContext) -> None:
        """Connect; called once, before everything else, also after a restart."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows (at least one): user columns, then ``_event_time_ms`` and ``_ingest_time_us``. They may be held."""

    def flush(self) -> None:
        """Bring out everything that was taken; when this returns, the rows must survive the death of the process.

        Called for every checkpoint, at the end, and some times a second in between. If it raises, the job goes
        back to its last checkpoint.
        """

    def close(self) -> None:
        """Release everything; called once, after a failure too. What was not flushed comes again."""

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Called by Weir; calls :meth:`write`."""
        self.write(batch)
        return ()
