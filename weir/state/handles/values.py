"""Handles of one value per key.

Fixed-width ones lie in a ``CellTable`` (``cell_values``), all others in a ``ValueTable`` (``byte_values``).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from typing_extensions import override

from weir.state.handles.block import Handle, Keys


class ValueHandle(Handle):
    """The value of the current key, and values of many keys."""

    @property
    @abstractmethod
    def value(self) -> Any:
        """The current key's value; the default, or None, if it has none.

        Raises:
            StateError: there is no current key.
        """

    @value.setter
    def value(self, value: Any) -> None:
        """Set it; None takes it away, as :meth:`clear` does.

        Raises:
            TypeError, ValueError: it is not of the declared type.
        """

    @abstractmethod
    def clear(self) -> None:
        """Take the current key's value away; the default counts again."""

    @abstractmethod
    def get(self, keys: Keys) -> Any:
        """Values of these keys, which may repeat: a Polars series as long as ``keys``; of dataclasses a list.

        A key without a value has the default, or null.
        """

    @abstractmethod
    def put(self, keys: Keys, values: Any, *, last: bool = False) -> None:
        """Set values at once, also if the batch fails later.

        Args:
            keys: each of them once; or ``last`` is given.
            values: as many: a series, an array of numpy or Arrow, or a list. Null takes a value away.
            last: of a key that is there twice the last value counts.

        Raises:
            StateError: a key is there twice.
            TypeError, ValueError: a value is not of the declared type, or there are more or fewer than keys.
        """


class _Wrapped(Handle):
    """A handle whose values are combined by the author's functions."""

    def __init__(self, inner: ValueHandle) -> None:
        super().__init__(inner.name, inner._cursor)  # noqa: SLF001
        self._inner = inner
        # The batch form, and the life cycle.
        self.get, self.put, self.clear = inner.get, inner.put, inner.clear

    @property
    @override
    def is_set(self) -> bool:
        return self._inner.is_set

    @override
    def prepare(self) -> None:
        self._inner.prepare()

    @override
    def apply(self) -> None:
        self._inner.apply()

    @override
    def discard(self) -> None:
        self._inner.discard()


class ReducingHandle(_Wrapped):
    """The handle of :class:`weir.ReducingState`; ``get(keys)`` and ``put(keys, values)`` are those of a value."""

    def __init__(self, inner: ValueHandle, function: Callable[[Any, Any], Any]) -> None:
        super().__init__(inner)
        self._function = function

    @property
    def value(self) -> Any:
        """What came of all that was added for the current key; None: nothing was."""
        return self._inner.value

    def add(self, value: Any) -> None:
        """Combine the current key's value with another one.

        Raises:
            TypeError, ValueError: what comes of it is not of the declared type.
        """
        before = self._inner.value
        self._inner.value = value if before is None else self._function(before, value)


class AggregatingHandle(_Wrapped):
    """The handle of :class:`weir.AggregatingState`; ``get(keys)`` and ``put(keys, values)`` are of accumulators."""

    def __init__(
        self, inner: ValueHandle, add: Callable[[Any, Any], Any], result: Callable[[Any], Any] | None
    ) -> None:
        super().__init__(inner)
        self._add, self._result = add, result

    def add(self, value: Any) -> None:
        """Change the current key's accumulator.

        Raises:
            TypeError, ValueError: the new accumulator is not of the declared type.
        """
        self._inner.value = self._add(self._inner.value, value)

    def result(self) -> Any:
        """What came of all that was added for the current key."""
        value = self._inner.value
        return value if self._result is None else self._result(value)
