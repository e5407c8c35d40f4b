"""Users' own keyed operators: the base that they subclass, and what runs it in a subtask."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pyarrow as pa

from weir import keys as weir_keys
from weir.errors import GraphError, StateError
from weir.operators.base import Json, Operator, OperatorContext
from weir.operators.keyed_rows import declared_tables, row_hashes
from weir.operators.state_codec import check_user_codec, kept_snapshots, keyed_snapshot
from weir.operators.user_operator import CheckedUserOperator
from weir.records import KEY_HASH_COLUMN, without_key_hash
from weir.specs import KeyedProcessSpec
from weir.state.tables.values import ValueTable

#: The name that job authors know.
KeyedState = ValueTable


class KeyedProcess(Operator):
    """Base of users' keyed operators: subclass it, override :meth:`process`, use :attr:`keyed_state`.

    Everything below ``open`` is as in :class:`weir.operators.base.Operator`; an overridden ``open`` calls
    ``super().open(context)`` first.

    Only what is in ``keyed_state`` survives a restart and moves with its keys; attributes of the object are lost.
    Whoever changes what the bytes of values mean gives ``state_codec`` another name, and lists in ``readable_codecs``
    the older ones that the operator can still read; state of any other codec is refused at the start from a checkpoint.
    """

    #: Name of the form of the values that are written.
    state_codec: ClassVar[str] = "1"
    #: Names of older forms that are understood.
    readable_codecs: ClassVar[tuple[str, ...]] = ()

    _keyed_state: ValueTable | None = None
    _key_columns: tuple[str, ...] = ()
    #: The batch that is processed, and its rows' key hashes (uint64): known from the exchange.
    _known_hashes: tuple[pa.RecordBatch, np.ndarray] | None = None

    def open(self, context: OperatorContext) -> None:
        """Take the stage's store.

        Raises:
            StateError: there is none.
        """
        self._keyed_state = declared_tables(context).values()

    def bind(self, key_columns: tuple[str, ...]) -> None:
        """Tell it the columns that ``key_by`` named; called by :class:`KeyedProcessOperator` before ``open``."""
        self._key_columns = key_columns

    def know_hashes(self, batch: pa.RecordBatch, hashes: np.ndarray) -> None:
        """Tell it the key hashes (uint64, shape (rows,)) of the batch that is processed next."""
        self._known_hashes = batch, hashes

    @property
    def keyed_state(self) -> ValueTable:
        """This operator's state.

        Raises:
            StateError: the operator is not open.
        """
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
        if isinstance(self._user, KeyedProcess):
            self._user.bind(spec.key_columns)

    def open(self, context: OperatorContext) -> None:
        """Open the user's operator; it finds in ``context.restored`` what its own ``snapshot`` gave.

        Raises:
            StateError: it cannot read the checkpoint's state.
        """
        kept = kept_snapshots(context, self._spec.kind)
        for value in kept.values():
            readable = getattr(self._user, "readable_codecs", ())
            check_user_codec(context.operator_name, value["codec"], self._codec(), readable)
        restored = {index: value["user"] for index, value in kept.items()}
        super().open(replace(context, restored=restored))

    def _codec(self) -> dict[str, Json]:
        return {
            "name": getattr(self._user, "state_codec", KeyedProcess.state_codec),
            "keys": list(self._spec.key_columns),
        }

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """What the user's operator makes of a batch."""
        shown = without_key_hash(batch)
        if shown is not batch and isinstance(self._user, KeyedProcess):
            self._user.know_hashes(shown, batch.column(KEY_HASH_COLUMN).to_numpy(zero_copy_only=True))
        return self._checker.each("process", self._user.process(shown), shown)

    def snapshot(self, checkpoint_id: int) -> Json:
        """The codec of the user's state, and what the user's operator gives."""
        return keyed_snapshot(self._spec.kind, self._codec(), user=self._user.snapshot(checkpoint_id))
