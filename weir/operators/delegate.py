"""Runs an operator that a job's author wrote: what users see of a batch is decided here."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from weir.author.operator import Json, Operator, OperatorContext
from weir.rows.records import as_authors_see


class UserStep(Operator):
    """Base of what runs objects of a job's author; rows that make them raise can be put aside."""

    knows_rows_by_time = True


class UserOperator(UserStep):
    """Hands every call on to a user's operator, batches without ``_key_hash``; both time columns stay.

    Made by the registry for a sink that is no :class:`weir.TwoPhaseSink`.
    """

    #: A sink has one input.
    tells_inputs_apart = False

    def __init__(self, user: Operator) -> None:
        self._user = user

    @property
    def user(self) -> Operator:
        """The user's operator, for metrics."""
        return self._user

    def open(self, context: OperatorContext) -> None:
        """Open the user's operator."""
        self._user.open(context)

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """What the user's operator makes of a batch."""
        return self._user.process(as_authors_see(batch))

    def process_input(self, input_index: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """What the user's operator makes of a batch of one of its inputs."""
        return self._user.process_input(input_index, as_authors_see(batch))

    def on_watermark(self, time_ms: int) -> Iterable[pa.RecordBatch]:
        """What the user's operator makes of a watermark."""
        return self._user.on_watermark(time_ms)

    def on_input_watermark(self, input_index: int, time_ms: int) -> None:
        """Tell the user's operator of the watermark of one input."""
        self._user.on_input_watermark(input_index, time_ms)

    def flush(self) -> None:
        """Let the user's operator write what it buffers outside."""
        self._user.flush()

    def snapshot(self, checkpoint_id: int) -> Json:
        """Returns the snapshot of the user's operator."""
        return self._user.snapshot(checkpoint_id)

    def commit(self, checkpoint_id: int) -> None:
        """Tell the user's operator."""
        self._user.commit(checkpoint_id)

    def drain(self) -> Iterable[pa.RecordBatch]:
        """What the user's operator has under way."""
        return self._user.drain()

    def finish(self) -> Iterable[pa.RecordBatch]:
        """What the user's operator emits at the end."""
        return self._user.finish()

    def close(self) -> None:
        """Close the user's operator."""
        self._user.close()
