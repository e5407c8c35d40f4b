"""Runs a :class:`weir.Operator` that a job's author wrote, and checks what leaves it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from weir.errors import GraphError
from weir.operators.base import Operator, OperatorContext
from weir.operators.delegate import UserOperator
from weir.operators.functions import MapBatchesOperator
from weir.records import without_key_hash
from weir.specs import MapBatchesSpec, UserOperatorSpec


class CheckedUserOperator(UserOperator):
    """Hands calls on to a user's operator; what it returns has the declared columns and the time columns."""

    def __init__(self, spec: UserOperatorSpec, user: Operator) -> None:
        super().__init__(user)
        self._checker = MapBatchesOperator(MapBatchesSpec(lambda batch: batch, spec.schema))

    def open(self, context: OperatorContext) -> None:
        """Open the user's operator."""
        self._checker.open(context)
        super().open(context)

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """What the user's operator makes of a batch."""
        shown = without_key_hash(batch)
        for out in self._user.process(shown):
            yield from self._checker.checked(out, shown)

    def on_watermark(self, time_ms: int) -> Iterable[pa.RecordBatch]:
        """What the user's operator makes of a watermark."""
        return self._checked(self._user.on_watermark(time_ms))

    def finish(self) -> Iterable[pa.RecordBatch]:
        """What the user's operator makes of the end."""
        return self._checked(self._user.finish())

    def _checked(self, outputs: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for out in outputs:
            yield from self._checker.checked(out, None)


def create_user_operator(spec: UserOperatorSpec) -> Operator:
    """What the user's factory makes, for ``weir.operators.registry``.

    Raises:
        GraphError: it is no operator.
    """
    made = spec.factory()
    if not isinstance(made, Operator):
        raise GraphError(f"the factory of an apply step returned {type(made).__name__}, not a weir.Operator")
    return CheckedUserOperator(spec, made)
