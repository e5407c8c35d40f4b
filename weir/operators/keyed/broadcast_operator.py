"""Runs a user's :class:`weir.BroadcastProcess` in a subtask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import orjson
import pyarrow as pa

from weir.broadcast_process import BroadcastProcess, broadcast_form
from weir.errors import GraphError, UserFunctionError
from weir.operators.base import Json, OperatorContext
from weir.operators.delegate import UserStep
from weir.operators.keyed.keyed_rows import declared_tables
from weir.operators.keyed.state_codec import kept_snapshots, keyed_snapshot
from weir.operators.stateless.functions import FlatMapOperator
from weir.operators.user_operator import OutputChecker
from weir.records import as_authors_see, user_columns
from weir.specs import FlatMapSpec
from weir.specs.broadcast import BroadcastProcessSpec
from weir.state.tables.broadcast import BroadcastTable

#: Dates and dataclasses, which would be texts and objects after a restart, are refused.
_PLAIN_ONLY = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS


class BroadcastOperator(UserStep):
    """The first input has the rows, the second one the rules."""

    tells_inputs_apart = True

    def __init__(self, spec: BroadcastProcessSpec) -> None:
        made = spec.factory()
        if not isinstance(made, BroadcastProcess):
            raise GraphError(
                f"the factory of a broadcast step returned {type(made).__name__}, not a weir.BroadcastProcess"
            )
        self._form = broadcast_form(type(made))
        self._user = made
        self._spec = spec
        self._step = spec.kind
        self._checker = OutputChecker(spec.schema)
        self._rows = FlatMapOperator(FlatMapSpec(self._process_row, spec.schema))
        self._table: BroadcastTable | None = None
        self._is_open = False

    @property
    def user(self) -> BroadcastProcess:
        """The user's object."""
        return self._user

    @property
    def table(self) -> BroadcastTable:
        """The dict."""
        assert self._table is not None
        return self._table

    def check_restored(self, context: OperatorContext) -> None:
        """See :class:`Operator`."""
        kept_snapshots(context, self._spec.kind)

    def open(self, context: OperatorContext) -> None:
        """Begin with the dict of a checkpoint, then open the user's operator.

        Raises:
            StateError: the stage has no store, or the checkpoint holds the state of another kind of step.
        """
        self._step = context.operator_name
        self._table = declared_tables(context).broadcast("broadcast")
        for value in kept_snapshots(context, self._spec.kind).values():
            self._table.restore(value["items"])
        self._checker.open(context)
        self._rows.open(context)
        self._is_open = True
        self._user.open(replace(context, tables=None, restored={}))

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """What the user's operator makes of rows."""
        return self.process_input(0, batch)

    def process_input(self, input_index: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Rows go through, with the dict as it is; rules change it."""
        if input_index == 1:
            self._change(batch)
            return
        shown = as_authors_see(batch)
        if self._form == "records":
            yield from self._rows.process(shown)
            return
        made = self._user.process_batch(shown, MappingProxyType(self.table.items))
        yield from self._checker.each("process_batch", () if made is None else made, shown)

    def _process_row(self, row: dict[str, Any]) -> Iterable[Any]:
        made = self._user.process(row, MappingProxyType(self.table.items))
        return () if made is None else made

    def _change(self, batch: pa.RecordBatch) -> None:
        items = self.table.items
        before = {} if self.table.is_whole else dict(items)
        for index, row in enumerate(batch.select(user_columns(batch.schema)).to_pylist()):
            try:
                self._user.on_broadcast(row, items)
            except Exception as error:
                told = f"step {self._step!r}: on_broadcast raised {type(error).__name__}: {error}"
                raise self._of_row(told, index) from error
        self.table.changed(before)
        try:
            restored = orjson.loads(orjson.dumps(items, option=_PLAIN_ONLY))
        except TypeError as error:
            told = f"step {self._step!r}: broadcast state is not text -> JSON after on_broadcast: {error}"
            raise self._of_row(told, batch.num_rows - 1) from error
        if restored != items:
            name = next(name for name, value in items.items() if restored[name] != value)
            raise self._of_row(
                f"step {self._step!r}: broadcast state is not text -> JSON after on_broadcast: item {name!r} is "
                f"{items[name]!r}, and would be {restored[name]!r} after a restart; write it so",
                batch.num_rows - 1,
            )

    @staticmethod
    def _of_row(message: str, index: int) -> UserFunctionError:
        error = UserFunctionError(message)
        error.row_index = index
        return error

    def snapshot(self, checkpoint_id: int) -> Json:
        """The dict, of one subtask of all."""
        if not self.table.is_keeper:
            return None
        # What is told must not change any more.
        items = orjson.loads(orjson.dumps(self.table.items))
        return keyed_snapshot(self._spec.kind, {"keys": list(self._spec.key_columns)}, items=items)

    def close(self) -> None:
        """Close the user's operator, if it was opened."""
        if self._is_open:
            self._user.close()
