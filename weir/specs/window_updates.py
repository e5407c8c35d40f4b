"""When windows tell their results besides once at their end: before it, and again when late rows have come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import polars as pl

from weir.errors import GraphError
from weir.specs.words import duration_words

if TYPE_CHECKING:
    from weir.specs.window_kinds import Window, WindowTime

ResultMode = Literal["accumulating", "discarding", "changelog"]


@dataclass(frozen=True)
class Trigger:
    """When a window tells what it has although it is not complete; exactly one of the three is given."""

    interval_ms: int | None = None
    #: Whose interval it is.
    time: WindowTime = "processing"
    #: After so many further rows of a key in a window.
    rows: int | None = None
    #: After a row for which this is true.
    where: pl.Expr | None = None


@dataclass(frozen=True)
class WindowUpdates:
    """How results are told besides once."""

    #: A window takes rows until the watermark is so much above its end.
    lateness_ms: int = 0
    early: Trigger | None = None
    results: ResultMode = "accumulating"

    @property
    def keeps_told(self) -> bool:
        """Return whether the state says of each window what has been told."""
        return self.early is not None or self.results != "accumulating"

    @property
    def words(self) -> str:
        """What plans show after the words of the window."""
        text = f", {duration_words(self.lateness_ms)} late" if self.lateness_ms else ""
        if (early := self.early) is not None:
            if early.interval_ms is not None:
                text += f", early every {duration_words(early.interval_ms)} of {early.time} time"
            elif early.where is None:
                text += f", early every {early.rows} rows"
            else:
                text += f", early where {early.where}"
        return text if self.results == "accumulating" else f"{text}, {self.results}"


def check_updates(step: str | None, window: Window, updates: WindowUpdates) -> None:
    """Check that a window can be told so.

    Raises:
        GraphError: it cannot.
    """
    early, results = updates.early, updates.results
    if results not in get_args(ResultMode):
        raise GraphError(
            f"step {step!r}: results is {results!r}; it is 'accumulating', 'discarding' or 'changelog'"
        )
    if updates.lateness_ms and window.time == "processing":
        raise GraphError(f"step {step!r}: windows by the clock have no late rows; leave allowed_lateness out")
    if window.kind == "global":
        if updates.lateness_ms:
            raise GraphError(
                f"step {step!r}: no row is late for a window that never ends; leave allowed_lateness out"
            )
        if early is None:
            raise GraphError(
                f"step {step!r}: a global window never ends; say when it tells, early=weir.every(...)"
            )
    if results != "accumulating" and early is None and not updates.lateness_ms:
        raise GraphError(
            f"step {step!r}: results={results!r} goes only with early or allowed_lateness: each window has one result"
        )
    if window.kind == "session":
        _check_session(step, updates)
    if window.kind in ("sliding", "cumulative"):
        if results != "accumulating":
            raise GraphError(
                f"step {step!r}: {window.kind} windows share their rows, so results={results!r} does not go with them"
            )
        if early is not None and early.interval_ms is None:
            raise GraphError(
                f"step {step!r}: {window.kind} windows share their rows; tell them early by time, weir.every('1s')"
            )
    if early is not None and early.time == "event" and window.time == "processing":
        raise GraphError(
            f"step {step!r}: no watermark tells the time of windows by the clock; use time='processing'"
        )


def _check_session(step: str | None, updates: WindowUpdates) -> None:
    if updates.early is not None and updates.early.interval_ms is None:
        raise GraphError(
            f"step {step!r}: rows of sessions are put together when these are told; tell them early by time, "
            "weir.every('1s')"
        )
