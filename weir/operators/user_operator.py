"""Runs a :class:`weir.Operator` that a job's author wrote, and checks what leaves it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from weir.author.operator import Operator, OperatorContext
from weir.errors import GraphError
from weir.operators.delegate import UserOperator
from weir.operators.side_rows import unknown_output
from weir.operators.stateless.functions import MapBatchesOperator, as_batch
from weir.rows.records import EVENT_TIME_COLUMN, INGEST_TIME_COLUMN, as_authors_see
from weir.rows.side_outputs import SideRows
from weir.specs import MapBatchesSpec, SideOutput, UserOperatorSpec

_NOT_WRAPPED = (pa.RecordBatch, pa.Table, pl.DataFrame, str, bytes)


class OutputChecker(MapBatchesOperator):
    """Checks what the methods of a user's operator yield against the declared columns."""

    def __init__(
        self, schema: pa.Schema, key_columns: tuple[str, ...] = (), sides: Sequence[SideOutput] = ()
    ) -> None:
        """``key_columns``: those by which the rows are where they are; () if they may change."""
        super().__init__(MapBatchesSpec(lambda batch: batch, schema))
        self._key_columns = key_columns
        self._sides = {side.name: OutputChecker(side.schema) for side in sides}

    @override
    def open(self, context: OperatorContext) -> None:
        super().open(context)
        for side in self._sides.values():
            side.open(context)

    def each(
        self, method: str, outputs: object, batch: pa.RecordBatch | None
    ) -> Iterator[pa.RecordBatch | SideRows]:
        """Yields the outputs of a method one by one, checked, as they leave the step.

        Args:
            method: its name, for messages.
            outputs: what it returned; a generator of the author's runs here.
            batch: what it was given, if that were rows.

        Raises:
            UserFunctionError: it is not what was declared.
        """
        if isinstance(outputs, _NOT_WRAPPED) or not isinstance(outputs, Iterable):
            raise self._error(
                f"{method}() returned {_told(outputs)}; it must yield record batches (yield batch), or return ()"
            )
        for out in map(as_batch, outputs):
            self._did = f"{method}() yielded"
            if isinstance(out, SideRows):
                yield from self._side_rows(out, batch)
                continue
            if not isinstance(out, pa.RecordBatch):
                raise self._error(
                    f"{method}() yielded {_told(out)}; it must yield pyarrow.RecordBatch or polars.DataFrame "
                    "objects, or nothing"
                )
            for checked in self.checked(out, batch):
                if batch is not None and self._key_columns:
                    self._check_keys(checked, batch)
                yield checked

    def _side_rows(self, out: SideRows, batch: pa.RecordBatch | None) -> Iterator[SideRows]:
        side = self._sides.get(out.output)
        if side is None:
            raise self._error(unknown_output(out.output, list(self._sides)))
        for checked in side.as_side(f"{self._did} for side output {out.output!r}", out.rows, batch):
            yield SideRows(out.output, checked)

    def as_side(self, did: str, rows: object, batch: pa.RecordBatch | None) -> tuple[pa.RecordBatch, ...]:
        """Check rows of a side output; ``did``: who handed the rows out, for messages."""
        self._did = did
        return self.checked(rows, batch)

    def checked(self, result: Any, batch: pa.RecordBatch | None) -> tuple[pa.RecordBatch, ...]:
        """Check a result as the base class does, sooner for a batch of exactly the declared form."""
        if isinstance(result, pa.RecordBatch) and result.schema.equals(self._schema) and result.num_rows:
            fields = zip(result.schema, result.columns, strict=True)
            if not any(column.null_count for field, column in fields if not field.nullable):
                self._check_texts(result, batch)
                return (result,)
        return super().checked(result, batch)

    def _check_keys(self, out: pa.RecordBatch, batch: pa.RecordBatch) -> None:
        """Check rows that are plainly the batch's, by number and times: rows of other keys have their own times."""
        changed = [name for name in self._key_columns if not out.column(name).equals(batch.column(name))]
        if not changed or out.num_rows != batch.num_rows:
            return
        if not all(out.column(name).equals(batch.column(name)) for name in _TIME_COLUMNS):
            return
        for name in changed:
            # Rows of one time may come in another order.
            if not pc.all(pc.is_in(out.column(name), value_set=batch.column(name))).as_py():
                raise self._error(
                    f"{self._did} other values in key column {name!r} than it was given, and rows of a key stay where "
                    "their key is; write them to another column, or change the key before key_by"
                )


class CheckedUserOperator(UserOperator):
    """Hands calls on to a user's operator; what it returns has the declared columns and the time columns."""

    def __init__(self, user: Operator, schema: pa.Schema, sides: Sequence[SideOutput] = ()) -> None:
        super().__init__(user)
        self._checker = OutputChecker(schema, sides=sides)

    def open(self, context: OperatorContext) -> None:
        """Open the user's operator."""
        self._checker.open(context)
        super().open(context)

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """What the user's operator makes of a batch."""
        shown = as_authors_see(batch)
        return self._checker.each("process", self._user.process(shown), shown)

    def on_watermark(self, time_ms: int) -> Iterable[pa.RecordBatch]:
        """What the user's operator makes of a watermark."""
        return self._checker.each("on_watermark", self._user.on_watermark(time_ms), None)

    def drain(self) -> Iterable[pa.RecordBatch]:
        """What the user's operator has under way."""
        return self._checker.each("drain", self._user.drain(), None)

    def finish(self) -> Iterable[pa.RecordBatch]:
        """What the user's operator makes of the end."""
        return self._checker.each("finish", self._user.finish(), None)


_TIME_COLUMNS = (EVENT_TIME_COLUMN, INGEST_TIME_COLUMN)


def _told(value: object) -> str:
    return "None" if value is None else type(value).__name__


def create_user_operator(spec: UserOperatorSpec) -> Operator:
    """Returns the operator that the user's factory makes; called by ``weir.operators.registry``.

    Raises:
        GraphError: it is no operator.
    """
    made = spec.factory()
    if not isinstance(made, Operator):
        raise GraphError(f"the factory of an apply step returned {type(made).__name__}, not a weir.Operator")
    return CheckedUserOperator(made, spec.schema, spec.side_outputs)
