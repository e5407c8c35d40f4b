"""State whose entries belong to times: versions of a value, values of windows, sessions; inert.

::

    class Prices(weir.KeyedProcess):
        prices = weir.VersionedState(pl.Float64, retention="1d")

        def process(self, key, row, context):
            self.prices.put(row["price"], context.event_time_ms)
            yield {"item": key[0], "an_hour_ago": self.prices.get(context.event_time_ms - 3_600_000)}

*Retention* counts back from the time of the row that puts or looks: its event time; if it is late, the watermark of its
split. For a timer it is the time of the timer. What is older is not taken, and not there for it. Space is given back
when the step's watermark goes on, whether a key is used again or not.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from typing_extensions import override

from weir.author.states import HandleT, State
from weir.errors import GraphError
from weir.state.handles.declarations import NOT_PUT, OPEN
from weir.state.ttl import Ttl, duration_ms
from weir.state.types import Form, value_type

if TYPE_CHECKING:
    # Ruff does not see that they are named, as texts, in the bases of classes.
    from weir.state.handles.sessions import SessionHandle  # noqa: F401
    from weir.state.handles.versions import VersionedHandle  # noqa: F401
    from weir.state.handles.windows import WindowHandle  # noqa: F401


class RetainedState(State[HandleT]):
    """Base of states that keep entries for a time."""

    def __init__(
        self, dtype: object, *, retention: str | dt.timedelta, renamed_from: str | None = None
    ) -> None:
        """Declare it.

        Args:
            dtype: of one value.
            retention: as of ``weir.Ttl``.
            renamed_from: what the state was called in the checkpoint that the job starts from: its entries go on.

        Raises:
            GraphError: state cannot have this type, or the retention is no duration.
        """
        super().__init__(Ttl(retention), renamed_from)
        self.type = value_type(dtype)

    @property
    @override
    def form(self) -> Form:
        return {self.kind: self.type.form}


class VersionedState(RetainedState["VersionedHandle"]):
    """A value of each key with its history: ``put(value, at_ms)``, ``get()``, ``get(as_of_ms)``, ``delete(at_ms)``.

    The latest version stays for ever; others for ``retention`` after a newer one has taken their place.
    """

    kind = "versioned"
    OPEN = OPEN
    NOT_PUT = NOT_PUT


class WindowState(RetainedState["WindowHandle"]):
    """Values of each key by the time at which a window starts: ``put(value, start_ms)``, ``fetch(first, last)``."""

    kind = "window"

    def __init__(
        self,
        dtype: object,
        *,
        retention: str | dt.timedelta,
        size: str | dt.timedelta | None = None,
        duplicates: bool = False,
        renamed_from: str | None = None,
    ) -> None:
        """Declare it.

        Args:
            dtype: of one value.
            retention: how long values stay after their window's start, as of ``weir.Ttl``.
            size: how long the windows are, if they are all alike; only compared with the retention.
            duplicates: keep every value that is put for a start, not only the last one.
            renamed_from: as of :class:`VersionedState`.

        Raises:
            GraphError: state cannot have this type, the retention or the size is no duration, or windows are longer
                than the retention: their values would be gone while rows of them still come.
        """
        super().__init__(dtype, retention=retention, renamed_from=renamed_from)
        self.duplicates = duplicates
        if size is None:
            return
        size_ms, retention_ms = duration_ms(size), duration_ms(retention)
        if size_ms > retention_ms:
            raise GraphError(
                f"a window state has windows of {size_ms:,} ms and a retention of {retention_ms:,} ms: values would "
                "be gone before their window is over; give a retention of at least the size"
            )

    @property
    @override
    def form(self) -> Form:
        return {"window_duplicates" if self.duplicates else "window": self.type.form}


class SessionState(RetainedState["SessionHandle"]):
    """Sessions of each key: ``put(value, start_ms, end_ms)``, ``find(earliest_end_ms, latest_start_ms)``.

    They stay for ``retention`` after their end.
    """

    kind = "session"
