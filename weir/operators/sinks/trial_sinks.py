"""Small sinks: blackhole, print, and dead letters. After a restart they see rows again."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

import pyarrow as pa

from weir.author.operator import Operator, OperatorContext
from weir.errors import InputError
from weir.operators.dead_letters import DeadLetterFile
from weir.operators.sinks.text_parts import json_lines
from weir.specs import BlackholeSpec, DeadLettersSpec, PrintSpec


class BlackholeSink(Operator):
    """Counts rows and drops them.

    Guarantee: none is needed. The count is of this deployment and includes rows that come again after a restart.
    """

    def __init__(self, spec: BlackholeSpec) -> None:
        #: Rows so far.
        self.rows = 0

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Count."""
        self.rows += batch.num_rows
        return ()


class DeadLetterSink(Operator):
    """Puts user columns, as JSON, into the step's dead-letter file.

    Guarantee: that of dead letters: once, unless a subtask comes back to another machine.
    """

    def __init__(self, spec: DeadLettersSpec) -> None:
        self._reason = spec.reason

    def open(self, context: OperatorContext) -> None:
        """Take the file."""
        self._context = context

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Write down every row.

        Raises:
            InputError: the file cannot be written.
        """
        letters = self._context.dead_letters
        if letters is not None and batch.num_rows:
            origin = f"step {self._context.operator_name}"
            for line in json_lines(batch).splitlines():
                letters.reject(origin, -1, self._reason, line)
        return ()

    def close(self) -> None:
        """Release the file."""
        letters = self._context.dead_letters
        if isinstance(letters, DeadLetterFile):
            letters.close()


class PrintSink(Operator):
    """Prints user columns as JSON lines on standard output.

    Guarantee: at least once. Rows since the last checkpoint are printed again after a restart, and so is what
    counts for the limit. A reader that closes standard output fails the job.
    """

    def __init__(self, spec: PrintSpec) -> None:
        self._left = spec.rows_max

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Print until the limit is reached (of this subtask), then drop."""
        if self._left is not None:
            batch = batch.slice(0, self._left)
            self._left -= batch.num_rows
        if batch.num_rows:
            try:
                sys.stdout.write(json_lines(batch).decode())
                sys.stdout.flush()
            except BrokenPipeError:
                # Nobody will ever read on, and what is still buffered must not raise again when the process ends.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                # Without a cause: a broken pipe elsewhere is an outage.
                raise InputError(
                    "standard output was closed by its reader, such as head; the job ends"
                ) from None
        return ()
