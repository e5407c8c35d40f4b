"""State that a keyed operator declares as attributes of its class; inert until the runtime opens it.

::

    class Bursts(weir.KeyedProcess):
        seen = weir.ListState(pl.Int64)
        total = weir.ValueState(pl.Int64, default=0)

        def process(self, key, row, context):
            self.total.value += 1
            self.seen.append(row["at"])
            yield {"user": key[0], "edits": len(self.seen)}

In an operator's methods such an attribute is a *handle* (``weir.state.handles``), which stands for the state of the
current key. Each state has a number of its own in the store, by the names of step and state; its type goes into every
checkpoint, and a checkpoint with another type is refused.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, overload

from typing_extensions import TypeVar, override

from weir.errors import GraphError, StateError
from weir.protocol.checkpoints.horizons import Horizon
from weir.state.ttl import Ttl, checked_ttl
from weir.state.types import Form, MapKeyType, ValueType, value_type

if TYPE_CHECKING:
    from typing import Self

    # Ruff does not see that they are named, as texts, in the bases of classes.
    from weir.state.handles.lists import ListHandle  # noqa: F401
    from weir.state.handles.maps import MapHandle  # noqa: F401
    from weir.state.handles.values import AggregatingHandle, ReducingHandle, ValueHandle  # noqa: F401


#: Stands for "no default".
_NONE: Any = object()
#: About the longest duration that a TTL can have.
_FOR_EVER = "520000w"
_S = TypeVar("_S", bound="State")
#: The handle that stands for a state in an operator that is open.
HandleT = TypeVar("HandleT", default=Any)


@dataclass(frozen=True)
class DeclaredState:
    """A state that a user's keyed operator declares."""

    name: str
    #: "value", "list", "map", "reducing", "aggregating" or "timers".
    kind: str
    #: Its type, as text.
    dtype: str
    #: What it was called in the checkpoint from which the job starts; empty: as now.
    renamed_from: str = field(default="", metadata={"derived": True})


class State(ABC, Generic[HandleT]):
    """Base of declarations."""

    kind: ClassVar[str] = ""

    def __init__(self, ttl: Ttl | None = None, renamed_from: str | None = None) -> None:
        self._name = ""
        #: What it was called in the checkpoint from which the job starts; empty: as now.
        self.renamed_from = renamed_from or ""
        #: After what time values, elements of lists and items of maps expire; None: never.
        self.ttl = checked_ttl(ttl)

    def __set_name__(self, owner: type, name: str) -> None:
        """Take the attribute's name as the state's."""
        if self._name not in ("", name):
            raise GraphError(f"{owner.__name__}: one state is declared as {self._name!r} and as {name!r}")
        self._name = name

    @property
    def name(self) -> str:
        """The attribute's name."""
        return self._name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> HandleT: ...
    def __get__(self, instance: object | None, owner: type) -> Any:
        """The handle in an operator that is open; the declaration itself of the class.

        Raises:
            StateError: the operator is not open.
        """
        if instance is None:
            return self
        try:
            return instance.__dict__["_handles"][self._name]
        except KeyError:
            raise StateError(
                f"state {self._name!r} of {owner.__name__} is not open: it can be used from open(context) on, in a job"
            ) from None

    def __set__(self, instance: object, value: object) -> None:
        """Refuse an assignment to the attribute.

        Raises:
            AttributeError: always.
        """
        raise AttributeError(
            f"{self._name!r} is a declared state and cannot be replaced; change it with its methods, a ValueState with "
            f"self.{self._name}.value = ..."
        )

    @property
    @abstractmethod
    def form(self) -> Form:
        """What its bytes mean, as JSON; compared when a job starts from a checkpoint."""


class SingleState(State[HandleT]):
    """Base of states with one value of each key, or one accumulator."""

    def __init__(
        self, dtype: object, default: Any = None, ttl: Ttl | None = None, renamed_from: str | None = None
    ) -> None:
        """Declare it; see :class:`ValueState`."""
        super().__init__(ttl, renamed_from)
        self.type: ValueType = value_type(dtype)
        self.default = default
        if default is not None:
            try:
                self.type.encode(default)
            except (TypeError, ValueError) as error:
                raise GraphError(f"the default of a state: {error}") from error

    @property
    @override
    def form(self) -> Form:
        return self.type.form


class ValueState(SingleState["ValueHandle"]):
    """A value of each key: ``self.total.value``, ``clear()``; in batches ``get(keys)`` and ``put(keys, values)``.

    Numbers, Booleans, dates and times lie in arrays; the batch form of such a state is vectorised.
    """

    kind = "value"

    def __init__(
        self, dtype: object, default: Any = None, *, ttl: Ttl | None = None, renamed_from: str | None = None
    ) -> None:
        """Declare it.

        Args:
            dtype: a Polars type, int, float, str, bytes, bool, or a dataclass; see ``weir.state.types``.
            default: what a key without a value has, and one whose value has expired.
            ttl: when values expire; None: never.
            renamed_from: what the state was called in the checkpoint that the job starts from: its values go on.

        Raises:
            GraphError: state cannot have this type, or the default is of another one.
        """
        super().__init__(dtype, default, ttl, renamed_from)


class ReducingState(SingleState["ReducingHandle"]):
    """A value of each key, with which every added one is combined: ``self.most.add(3)``, ``self.most.value``."""

    kind = "reducing"

    def __init__(
        self,
        dtype: object,
        function: Callable[[Any, Any], Any],
        *,
        ttl: Ttl | None = None,
        renamed_from: str | None = None,
    ) -> None:
        """``function(value, added)`` returns the new value; the first one that is added is the first value.

        ``ttl``: when values expire; None: never.

        Raises:
            GraphError: as :class:`ValueState`, or ``function`` cannot be called.
        """
        super().__init__(dtype, ttl=ttl, renamed_from=renamed_from)
        if not callable(function):
            raise GraphError(f"a ReducingState needs a function of two values, got {type(function).__name__}")
        self.function = function


class AggregatingState(SingleState["AggregatingHandle"]):
    """An accumulator of each key: ``add(value)`` changes it, ``result()`` says what came of it."""

    kind = "aggregating"

    def __init__(
        self,
        dtype: object,
        start: Any,
        add: Callable[[Any, Any], Any],
        result: Callable[[Any], Any] | None = None,
        *,
        ttl: Ttl | None = None,
        renamed_from: str | None = None,
    ) -> None:
        """Declare it.

        Args:
            dtype: of the accumulator.
            start: the accumulator of a new key.
            add: ``add(accumulator, value)`` returns the new accumulator.
            result: ``result(accumulator)``; None: the accumulator is the result.
            ttl: when accumulators expire; None: never.
            renamed_from: as of :class:`ValueState`.

        Raises:
            GraphError: as :class:`ValueState`, or a function cannot be called.
        """
        super().__init__(dtype, start, ttl, renamed_from)
        for function in (add, result):
            if function is not None and not callable(function):
                raise GraphError(f"an AggregatingState needs functions, got {type(function).__name__}")
        self.add, self.result = add, result


class ListState(State["ListHandle"]):
    """A list of each key, like a ``collections.deque``: ends cost the same however long it is."""

    kind = "list"

    def __init__(self, dtype: object, *, ttl: Ttl | None = None, renamed_from: str | None = None) -> None:
        """``dtype`` is of an element; ``ttl``: when each element expires; None: never.

        Raises:
            GraphError: state cannot have this type.
        """
        super().__init__(ttl, renamed_from)
        self.type = value_type(dtype)

    @property
    @override
    def form(self) -> Form:
        return {"list": self.type.form}


class MapState(State["MapHandle"]):
    """A map of each key, like a ``dict`` whose items are in the order of their keys."""

    kind = "map"

    def __init__(
        self, key: object, value: object, *, ttl: Ttl | None = None, renamed_from: str | None = None
    ) -> None:
        """``key`` is a type of integers, text, bytes, dates or times, or a tuple of such types.

        ``ttl``: when each item expires; None: never.

        Raises:
            GraphError: state cannot have these types.
        """
        super().__init__(ttl, renamed_from)
        self.key_type = MapKeyType(key)
        self.type = value_type(value)

    @property
    @override
    def form(self) -> Form:
        return {"map": [["key", self.key_type.form], ["value", self.type.form]]}


def bind_handles(instance: object, handles: Mapping[str, Any]) -> None:
    """Let the states that an object's class declares stand for these handles, by name; called by the runtime."""
    instance.__dict__["_handles"] = dict(handles)


def outlasting(state: _S, horizons: Iterable[Horizon]) -> _S:
    """Return a state that has lost its TTL as one that keeps what has not expired before, for ever.

    Args:
        state: as it is declared.
        horizons: how far back the states of its step reach.
    """
    time = next((each.time for each in horizons if each.state == state.name), None)
    if state.ttl is not None or time is None:
        return state
    found = copy.copy(state)
    found.ttl = Ttl(_FOR_EVER, time=time)
    return found


def declared_states(kind: type) -> tuple[State, ...]:
    """The states that a class and its bases declare, by name.

    Raises:
        GraphError: a name is not one that a state can have.
    """
    found: dict[str, State] = {}
    for base in reversed(kind.__mro__):
        for name, value in vars(base).items():
            if isinstance(value, State):
                found[name] = value
            else:
                found.pop(name, None)
    for name, state in found.items():
        if name != state.name or not name.isidentifier() or name.startswith("_"):
            raise GraphError(
                f"{kind.__name__}: {name!r} cannot be the name of a state; use a plain name that does not begin with _"
            )
    return tuple(found[name] for name in sorted(found))
