"""What handles read of a declared state. The declarations of ``weir.author`` have it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

from weir.state.ttl import Ttl
from weir.state.types import MapKeyType, ValueType

#: Returned by ``put`` of a version that is the latest one: nothing ends it.
OPEN: Final = -1
#: Returned by ``put`` of a version that is older than the retention: nothing was written.
NOT_PUT: Final = -(2**63)


class Version(NamedTuple):
    """A version of a value."""

    value: Any
    #: From when on it is in force, ms since the epoch.
    valid_from_ms: int
    #: The first moment at which it is not any more; None: it is the latest one.
    valid_to_ms: int | None


class Session(NamedTuple):
    """A session; both ends are in it."""

    start_ms: int
    end_ms: int
    value: Any


class Declaration(Protocol):
    """A state of one type of values."""

    #: After what time values, elements or items expire; None: never.
    ttl: Ttl | None
    type: ValueType

    @property
    def name(self) -> str:
        """The attribute's name."""


class ValueDeclaration(Declaration, Protocol):
    """A state with one value of each key."""

    default: Any


class MapDeclaration(Declaration, Protocol):
    """A state with a map of each key."""

    key_type: MapKeyType


class WindowDeclaration(Declaration, Protocol):
    """A state with values of windows."""

    duplicates: bool
