"""What a run in this process returns: rows of its steps, and what was put aside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import polars as pl
import pyarrow as pa

from weir.errors import GraphError
from weir.local.collected import Collection
from weir.operators.dead_letters import DeadLetterFile
from weir.rows.frames import frame_of
from weir.rows.python_values import row_dicts
from weir.rows.records import EVENT_TIME_COLUMN, INGEST_TIME_COLUMN, system_schema
from weir.spelling import did_you_mean


class Rows:
    """The rows of one step, in the order in which they left it (entered it, if it is a sink).

    All of its forms have the user columns; with ``times=True`` also ``_event_time_ms`` and ``_ingest_time_us``.
    """

    def __init__(self, step: str, collection: Collection) -> None:
        self.step = step
        self._collection = collection

    def to_arrow(self, *, times: bool = False) -> pa.Table:
        """A ``pyarrow.Table``."""
        schema = self._collection.schema
        names = [*schema.names, *((EVENT_TIME_COLUMN, INGEST_TIME_COLUMN) if times else ())]
        batches = [batch.select(names) for batch in self._collection.batches()]
        if not batches:
            return (system_schema(schema) if times else schema).empty_table()
        # Nullability may differ from the declared schema; names and types do not.
        return pa.Table.from_batches(batches)

    def to_polars(self, *, times: bool = False) -> pl.DataFrame:
        """A ``polars.DataFrame``."""
        return frame_of(self.to_arrow(times=times))

    def to_dicts(self, *, times: bool = False) -> list[dict[str, Any]]:
        """Return a dict for each row."""
        return row_dicts(self.to_arrow(times=times))

    def __len__(self) -> int:
        """Number of rows."""
        return self._collection.rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rows as dicts."""
        return iter(self.to_dicts())

    def __eq__(self, other: object) -> bool:
        """Compares with a list of dicts, or with other rows."""
        if isinstance(other, Rows):
            return self.to_dicts() == other.to_dicts()
        return self.to_dicts() == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Rows of step {self.step!r}:\n{self.to_polars()}"

    def _repr_html_(self) -> str:
        """Return HTML for notebooks."""
        return self.to_polars()._repr_html_()


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that a source could not read."""

    step: str
    #: File or other origin, and byte offset or row number in it; -1 where there is none.
    source: str
    position: int
    reason: str
    #: The record as text; long ones are cut.
    raw: str


class Result:
    """What a run returned: ``result["step"]`` has the rows of a step that was collected."""

    def __init__(
        self,
        collections: Mapping[str, Collection],
        dead_letters: Sequence[DeadLetter],
        *,
        was_stopped: bool = False,
        late_rows: Mapping[str, int] | None = None,
    ) -> None:
        self._collections = collections
        #: Records that sources could not read.
        self.dead_letters = list(dead_letters)
        #: By step: rows that it dropped because they came too late.
        self.late_rows = dict(late_rows or {})
        #: The run was stopped before its inputs had ended.
        self.was_stopped = was_stopped

    @property
    def steps(self) -> list[str]:
        """Names of the steps whose rows are here."""
        return list(self._collections)

    def __getitem__(self, step: str) -> Rows:
        """The rows of a step.

        Raises:
            GraphError: they were not collected.
        """
        return rows_of(self._collections, step)

    def __iter__(self) -> Iterator[str]:
        """Names of the steps, as of a dict."""
        return iter(self.steps)

    def __repr__(self) -> str:
        rows = ", ".join(f"{step}: {found.rows} rows" for step, found in self._collections.items())
        late = "".join(f", {count:,} late at {step}" for step, count in self.late_rows.items())
        return f"<weir Result, {rows or 'nothing collected'}, {len(self.dead_letters)} dead letters{late}>"


def rows_of(collections: Mapping[str, Collection], step: str) -> Rows:
    """The rows of a step.

    Raises:
        GraphError: they were not collected.
    """
    if step not in collections:
        raise GraphError(
            f"rows of step {step!r} were not collected{did_you_mean(step, collections)}. End the branch with "
            f"weir.Collect(), or run with collect={step!r}"
        )
    return Rows(step, collections[step])


def read_dead_letters(files: Sequence[tuple[str, DeadLetterFile]]) -> list[DeadLetter]:
    """What is in the files of the subtasks, by step."""
    found = []
    for step, file in files:
        if file.path.exists():
            for line in file.path.read_bytes().splitlines():
                entry = orjson.loads(line)
                found.append(
                    DeadLetter(step, entry["source"], entry["position"], entry["reason"], entry["raw"])
                )
    return found
