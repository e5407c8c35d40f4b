"""Users' own keyed operators: the base that they subclass, and what runs it in a subtask."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from weir import keys as weir_keys
from weir.errors import GraphError, StateError
from weir.operators.base import Json, Operator, OperatorContext
from weir.operators.keyed.key_context import KeyContext
from weir.operators.keyed.keyed_records import Batches, Records, known_hashes
from weir.operators.keyed.keyed_rows import declared_tables, row_hashes
from weir.operators.keyed.state_codec import check_declared, check_user_codec, kept_snapshots, keyed_snapshot
from weir.operators.user_operator import CheckedUserOperator
from weir.records import KEY_HASH_COLUMN, without_key_hash
from weir.specs import KeyedProcessSpec
from weir.state.handles.block import Cursor, Handle
from weir.state.handles.opening import open_handle
from weir.state.tables.values import ValueTable
from weir.states import declared_states

#: The name that job authors know.
KeyedState = ValueTable
#: Of a process: rows, batches with declared states, or batches with ``keyed_state``.
ProcessForm = Literal["records", "batches", "old"]


class KeyedProcess(Operator):
    """Base of users' keyed operators. State is declared on the class: see ``weir.states``.

    A subclass has one of three forms:

    - per record: ``process(self, key, row, context)`` yields dicts of the declared columns (or returns a list of them,
      or None), which take the times of the row. ``key`` is a tuple. States stand for those of this key;
    - per batch: it overrides :meth:`process_batch`, which counts if both are there;
    - the older form: ``process(self, batch)`` with :attr:`keyed_state` and :meth:`keys`, for classes without declared
      states.

    Which one it is, is told by the class: whether it overrides ``process_batch``, declares states, or its ``process``
    takes three arguments. Everything below ``open`` is as in :class:`weir.operators.base.Operator`; an overridden
    ``open`` calls ``super().open(context)`` first.

    Only state survives a restart and moves with its keys; attributes of the object are lost. Whoever changes what the
    values mean, without changing their type, gives ``state_codec`` another name, and lists in ``readable_codecs`` the
    older ones that the operator can still read; state of any other codec is refused at the start from a checkpoint.
    """

    #: Name of the form of the values that are written.
    state_codec: ClassVar[str] = "1"
    #: Names of older forms that are understood.
    readable_codecs: ClassVar[tuple[str, ...]] = ()

    _keyed_state: ValueTable | None = None
    _key_columns: tuple[str, ...] = ()
    #: The batch that is processed, and its rows' key hashes (uint64): known from the exchange.
    _known_hashes: tuple[pa.RecordBatch, np.ndarray] | None = None
    _handles: dict[str, Handle]
    _cursor: Cursor

    @classmethod
    def form_of_process(cls) -> ProcessForm:
        """Which of the three forms the class has; called when a job is built, and by the runtime."""
        if cls.process_batch is not KeyedProcess.process_batch:
            return "batches"
        places = [
            parameter
            for parameter in inspect.signature(cls.process).parameters.values()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        return "records" if cls.process is not KeyedProcess.process and len(places) >= 4 else "old"

    def process(self, *args: Any, **kwargs: Any) -> Any:
        """Override it; see the class.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(f"{type(self).__name__} has neither process nor process_batch")

    def process_batch(self, batch: pa.RecordBatch, context: KeyContext) -> Iterable[pa.RecordBatch] | None:
        """Override it for the batch form: yields batches of the declared columns.

        Args:
            batch: at least one row, with the user columns and both time columns.
            context: ``context.keys(batch)`` are what ``get`` and ``put`` of states take.

        A result with as many rows as ``batch`` may leave the time columns out.
        """
        raise NotImplementedError

    def open(self, context: OperatorContext) -> None:
        """Open the states.

        Raises:
            StateError: the stage has no store.
        """
        tables = declared_tables(context)
        states = declared_states(type(self))
        self._cursor = Cursor()
        self._handles = {state.name: open_handle(state, tables, self._cursor) for state in states}
        if not states:
            self._keyed_state = tables.values()

    def make_context(self, max_parallelism: int) -> KeyContext:
        """What the process is called with; called by :class:`KeyedProcessOperator` after ``open``.

        Raises:
            StateError: the operator did not open its states.
        """
        if "_handles" not in self.__dict__:
            raise StateError("this keyed operator is not open; does its open() call super().open(context)?")
        return KeyContext(self._cursor, tuple(self._handles.values()), self._key_columns, max_parallelism)

    @property
    def cursor(self) -> Cursor:
        """The current key; moved by the runtime."""
        return self._cursor

    def bind(self, key_columns: tuple[str, ...]) -> None:
        """Tell it the columns that ``key_by`` named; called by :class:`KeyedProcessOperator` before ``open``."""
        self._key_columns = key_columns

    def know_hashes(self, batch: pa.RecordBatch, hashes: np.ndarray) -> None:
        """Tell it the key hashes (uint64, shape (rows,)) of the batch that is processed next."""
        self._known_hashes = batch, hashes

    @property
    def keyed_state(self) -> ValueTable:
        """The state of an operator that declares none.

        Raises:
            StateError: the operator is not open, or declares states.
        """
        if self._keyed_state is None and self.__dict__.get("_handles"):
            raise StateError("this keyed operator declares states: use these instead of keyed_state")
        if self._keyed_state is None:
            raise StateError("this keyed operator is not open; does its open() call super().open(context)?")
        return self._keyed_state

    def keys(self, batch: pa.RecordBatch) -> tuple[np.ndarray, list[bytes]]:
        """Key groups (uint16) and canonical key bytes of the batch's rows, for calls of :attr:`keyed_state`."""
        column = weir_keys.key_bytes(batch, self._key_columns)
        data, offsets = column.data.tobytes(), column.offsets.tolist()
        keys = [data[start:stop] for start, stop in pairwise(offsets)]
        known = self._known_hashes
        hashes = known[1] if known is not None and known[0] is batch else row_hashes(batch, column)
        return self.keyed_state.groups(hashes), keys


class KeyedProcessOperator(CheckedUserOperator):
    """Runs a user's :class:`KeyedProcess` in a subtask; what it yields is checked as that of ``apply`` is."""

    def __init__(self, spec: KeyedProcessSpec) -> None:
        made = spec.factory()
        if not isinstance(made, Operator):
            raise GraphError(
                f"the factory of a process step returned {type(made).__name__}, not a weir.KeyedProcess"
            )
        super().__init__(made, spec.schema, spec.key_columns)
        self._spec = spec
        self._form: ProcessForm = "old"
        self._context: KeyContext | None = None
        self._runner: Records | Batches | None = None
        if isinstance(self._user, KeyedProcess):
            self._user.bind(spec.key_columns)
            self._form = self._user.form_of_process()

    def open(self, context: OperatorContext) -> None:
        """Open the user's operator; it finds in ``context.restored`` what its own ``snapshot`` gave.

        Raises:
            StateError: it cannot read the checkpoint's state.
        """
        kept = kept_snapshots(context, self._spec.kind)
        needed = self._codec()
        for value in kept.values():
            readable = getattr(self._user, "readable_codecs", ())
            check_user_codec(context.operator_name, value["codec"], needed, readable)
            check_declared(context.operator_name, value["codec"].get("states", {}), needed.get("states", {}))
        restored = {index: value["user"] for index, value in kept.items()}
        super().open(replace(context, restored=restored))
        if self._form != "old":
            self._open_runner(context)

    def _open_runner(self, context: OperatorContext) -> None:
        user = self._user
        assert isinstance(user, KeyedProcess)
        self._context = user.make_context(context.max_parallelism)
        if self._form == "batches":
            self._runner = Batches(user.process_batch, self._checker, self._context)
        else:
            records = Records(
                user.process, self._spec.schema, self._spec.key_columns, user.cursor, self._context
            )
            records.open(context)
            self._runner = records

    def _codec(self) -> dict[str, Json]:
        codec: dict[str, Json] = {
            "name": getattr(self._user, "state_codec", KeyedProcess.state_codec),
            "keys": list(self._spec.key_columns),
        }
        states = declared_states(type(self._user))
        if states:
            codec["states"] = {state.name: {"kind": state.kind, "type": state.form} for state in states}
        return codec

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """What the user's operator makes of a batch."""
        shown = without_key_hash(batch)
        if self._runner is not None:
            return self._run(self._runner, shown, known_hashes(batch, KEY_HASH_COLUMN))
        if shown is not batch and isinstance(self._user, KeyedProcess):
            self._user.know_hashes(shown, batch.column(KEY_HASH_COLUMN).to_numpy(zero_copy_only=True))
        return self._checker.each("process", self._user.process(shown), shown)

    def _run(
        self, runner: Records | Batches, shown: pa.RecordBatch, hashes: np.ndarray | None
    ) -> Iterator[pa.RecordBatch]:
        context = self._context
        assert context is not None
        context.begin(shown, hashes)
        try:
            yield from runner.run(shown)
        except BaseException:
            context.abandon()
            raise

    def snapshot(self, checkpoint_id: int) -> Json:
        """The codec of the user's state, and what the user's operator gives."""
        return keyed_snapshot(self._spec.kind, self._codec(), user=self._user.snapshot(checkpoint_id))
