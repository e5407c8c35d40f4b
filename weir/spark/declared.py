"""A step with state as Spark first calls it: for the names of its states alone, in a process of their own.

Nothing of Weir is imported there but this file: it would take 1.2 s of the processor for each such step of each query.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any


class DeclaredStep:
    """A ``StatefulProcessor`` around a packed one; see :class:`weir.spark.stateful.StatefulStep`.

    Args:
        states: what each of the step's states is called in Spark, by number.
        packed: the step, by the serializer with which Spark sends functions to tasks, and as part of such a function.
    """

    def __init__(self, states: Mapping[int, str], packed: bytes) -> None:
        self._states, self._packed = dict(states), packed
        self._opened: tuple[Any, dict[int, Any]] | None = None
        self._step: Any = None

    def init(self, handle: Any) -> None:
        """Open the states; Spark calls this on the driver, too."""
        position = handle.getValueState("position", "value STRING")
        self._opened = (
            position,
            {
                number: handle.getMapState(name, "key BINARY", "value BINARY")
                for number, name in self._states.items()
            },
        )

    def handleInputRows(self, key: Any, rows: Iterable[Any], timerValues: Any) -> Iterator[Any]:
        """Yield what a key group makes of a trigger, and its watermark."""
        if self._step is None:
            from pyspark.serializers import CloudPickleSerializer

            assert self._opened is not None, "Spark calls init before"
            # pyspark's classes are without annotations.
            serializer: Any = CloudPickleSerializer
            self._step = serializer().loads(self._packed)
            self._step.open(*self._opened)
        yield from self._step.handleInputRows(key, rows, timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        """There are none."""
        return iter(())

    def close(self) -> None:
        """Nothing to do."""
