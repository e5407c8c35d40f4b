"""What an author's operator yields for side outputs: checked, and of dicts gathered into batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from weir.author.operator import OperatorContext
from weir.operators.stateless.functions import FlatMapOperator
from weir.rows.records import BATCH_BYTES_MAX
from weir.rows.side_outputs import SideRows
from weir.specs import FlatMapSpec, SideOutput
from weir.spelling import did_you_mean


def unknown_output(output: object, known: Sequence[str]) -> str:
    """The message about rows for a side output that the step does not declare."""
    return (
        f"rows were sent to side output {output!r}, which the step does not declare"
        f"{did_you_mean(str(output), known)}; declare it with side_outputs={{...}} where the step is added"
    )


class SideDicts:
    """Dicts for the side outputs of a step that takes one row, or one timer, at a time; in batches at the end.

    Those for outputs that nobody reads are looked at no further.
    """

    def __init__(self, outputs: Sequence[SideOutput]) -> None:
        self._outputs = {item.name: _SideRows(item.schema) for item in outputs}

    def open(self, context: OperatorContext) -> None:
        """Take the step's name, and what is read."""
        for name, rows in self._outputs.items():
            rows.open(context)
            rows.is_read = name in context.sides_read

    def add(self, made: SideRows, origin: int) -> bool:
        """Take in what an author's function yielded.

        Args:
            made: with a dict.
            origin: position of the row, or time of the timer.

        Returns:
            Whether there are so many rows that they should leave.

        Raises:
            ValueError: the step declares no such output, or the row is not as declared for it.
        """
        rows = self._outputs.get(made.output)
        if rows is None:
            raise ValueError(unknown_output(made.output, list(self._outputs)))
        return rows.is_read and rows.add(made.rows, origin)

    def built(self, times_of: Callable[[Sequence[int]], list[pa.Array]]) -> Iterator[SideRows]:
        """Yield what came since the last call; ``times_of`` makes both time columns of origins."""
        for name, rows in self._outputs.items():
            if rows.results:
                yield SideRows(name, rows.built(times_of))

    def forget(self) -> None:
        """The batch failed."""
        for rows in self._outputs.values():
            rows.forget()


class _SideRows(FlatMapOperator):
    def __init__(self, schema: pa.Schema) -> None:
        super().__init__(FlatMapSpec(lambda row: (), schema))
        self.is_read = True
        self.forget()

    def forget(self) -> None:
        self.results: list[dict[str, Any]] = []
        self._origins: list[int] = []
        self._size_bytes = 0

    def add(self, row: Any, origin: int) -> bool:
        # The function may change its dict, and yield it again.
        self.results.append(dict(self._check_row(row)))
        self._origins.append(origin)
        self._size_bytes += self._long_bytes(row)
        return len(self.results) >= self._batch_size or self._size_bytes >= BATCH_BYTES_MAX

    def built(self, times_of: Callable[[Sequence[int]], list[pa.Array]]) -> pa.RecordBatch:
        results, origins = self.results, self._origins
        self.forget()
        return self._build(results, times_of(origins))
