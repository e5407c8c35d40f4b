"""Triggers as code: when the window of a key tells its result, and when it is emptied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from weir.author.keyed_process import KeyedProcess
from weir.author.states import ValueState
from weir.errors import GraphError
from weir.operators.windows.rows.kept_rows import Kept, KeptRows
from weir.rows.records import EVENT_TIME_COLUMN, INGEST_TIME_COLUMN, int64_column, with_times
from weir.specs.windows import WINDOW_END

if TYPE_CHECKING:
    from weir.author.key_context import KeyContext


class WindowTrigger(KeyedProcess):
    """Base of triggers of your own, for :meth:`weir.KeyedStream.triggered_window`.

    Each hook gets many rows, or timers, of any keys at once, and says of each what happens when it has come. States are
    declared as in a :class:`weir.KeyedProcess`; they, the timers and the rows of windows are in checkpoints. One
    object serves all keys of a subtask::

        class AtHundred(weir.WindowTrigger):
            total = weir.ValueState(pl.Int64, default=0)

            def on_rows(self, batch, context):
                keys, found = context.keys(batch), []
                prices = batch["price"].to_pylist()
                totals = self.total.get(keys.distinct).to_list()
                for key, price in zip(keys.inverse, prices):
                    totals[key] += price
                    found.append(self.FIRE_AND_PURGE if totals[key] >= 100 else self.CONTINUE)
                    totals[key] %= 100
                self.total.put(keys.distinct, totals)
                return found
    """

    #: What a hook says of a row or a timer. A window that is emptied begins anew with the key's next row.
    CONTINUE, FIRE, PURGE, FIRE_AND_PURGE = range(4)

    #: The rows of each key since it was emptied, in the order in which they came: an Arrow IPC stream.
    window_rows = ValueState(bytes)
    _windows: KeptRows

    def on_rows(self, batch: pa.RecordBatch, context: KeyContext, /) -> Any:
        """Rows have come: a window has a row before it is said of this row whether it tells.

        Args:
            batch: at least one row, with the columns that the step reads and both time columns.
            context: ``context.keys(batch)`` are what ``get`` and ``put`` of states take, and timers:
                ``context.timers.register(times_ms, keys)``, ``register_processing``.

        Returns:
            For each row one of the four numbers, in an array or a list; None: nothing happens.
        """

    def on_event_time(self, batch: pa.RecordBatch, context: KeyContext, /) -> Any:
        """Timers that were registered by event time are due; ``_event_time_ms`` of the batch has their times.

        Returns:
            For each timer one of the four numbers; None: nothing happens. A window without rows tells nothing.
        """

    def on_processing_time(self, batch: pa.RecordBatch, context: KeyContext, /) -> Any:
        """Timers that were registered by the clock are due; as :meth:`on_event_time`."""

    # --- called by the runtime ---

    def process_batch(self, batch: pa.RecordBatch, context: KeyContext, /) -> Iterator[pa.RecordBatch]:
        """Keep the rows and tell windows that :meth:`on_rows` names; override that one."""
        inverse = np.asarray(context.keys(batch).inverse, dtype=np.int64)
        kept = self._joined(batch, context, inverse, adds=True)
        codes = self._codes("on_rows", self.on_rows(batch, context), batch.num_rows)
        order = np.argsort(inverse, kind="stable")
        # Where each row of the batch lies among all rows of its key.
        of_key, codes = inverse[order], codes[order]
        added = np.diff(kept.starts) - kept.held
        places = np.arange(len(order)) - np.repeat(np.cumsum(added) - added, added)
        stops = kept.starts[of_key] + kept.held[of_key] + places + 1
        now_us = int(int64_column(batch, INGEST_TIME_COLUMN).max())
        for made, _ in self._told(batch, context, kept, of_key, stops, codes):
            yield with_times(made, int64_column(made, WINDOW_END) - 1, now_us)

    def on_timers(self, batch: pa.RecordBatch, context: KeyContext, /) -> Iterator[pa.RecordBatch]:
        """Tell the windows that :meth:`on_event_time` or :meth:`on_processing_time` names; override those."""
        by_clock = context.timers.is_processing
        name = "on_processing_time" if by_clock else "on_event_time"
        codes = self._codes(name, getattr(self, name)(batch, context), batch.num_rows)
        inverse = np.asarray(context.keys(batch).inverse, dtype=np.int64)
        kept = self._joined(batch, context, inverse, adds=False)
        order = np.argsort(inverse, kind="stable")
        times_ms = int64_column(batch, EVENT_TIME_COLUMN)[order]
        of_key = inverse[order]
        for made, rows in self._told(batch, context, kept, of_key, kept.starts[of_key + 1], codes[order]):
            ends_ms = int64_column(made, WINDOW_END) - 1
            # Not before the watermark that has come.
            yield with_times(made, ends_ms if by_clock else np.maximum(ends_ms, times_ms[rows]), 0)

    def begin_windows(self, windows: KeptRows) -> None:
        """What makes results; before anything else."""
        self._windows = windows

    def _joined(self, batch: pa.RecordBatch, context: KeyContext, inverse: np.ndarray, *, adds: bool) -> Kept:
        kept = self.window_rows.get(context.keys(batch).distinct)
        return self._windows.joined(batch, inverse, kept, adds=adds)

    def _told(
        self,
        batch: pa.RecordBatch,
        context: KeyContext,
        kept: Kept,
        of_key: np.ndarray,
        stops: np.ndarray,
        codes: np.ndarray,
    ) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
        """Results, and of which rows or timers they are, which are in the order of their keys; keeps what stays.

        Args:
            batch: whose keys are meant.
            context: of the batch.
            kept: its keys' rows.
            of_key: the key of each row or timer.
            stops: by row or timer: the rows that its key has so far end here.
            codes: what has been said of it.
        """
        purged = np.where(codes & self.PURGE, stops, kept.starts[of_key])
        latest = np.maximum.accumulate(purged) if len(purged) else purged
        begins = np.maximum(kept.starts[of_key], np.concatenate([[0], latest[:-1]]))
        fires = np.flatnonzero((codes & self.FIRE != 0) & (begins < stops))
        for made, part in self._windows.told(kept, of_key[fires], begins[fires], stops[fires]):
            yield made, fires[part]
        stay = kept.starts[:-1].copy()
        np.maximum.at(stay, of_key, purged)
        self.window_rows.put(context.keys(batch).distinct, self._windows.encoded(kept, stay))

    def _codes(self, hook: str, given: Any, count: int) -> np.ndarray:
        if given is None:
            return np.zeros(count, dtype=np.int64)
        codes = np.asarray(given)
        if codes.shape != (count,) or codes.dtype.kind not in "iub" or ((codes < 0) | (codes > 3)).any():
            raise TypeError(
                f"{type(self).__name__}.{hook} returned {given!r:.200}; it returns one of self.CONTINUE, self.FIRE, "
                f"self.PURGE and self.FIRE_AND_PURGE for each of {count} rows, or None"
            )
        return codes.astype(np.int64)


def made_trigger(factory: Callable[[], Any], windows: KeptRows) -> WindowTrigger:
    """A trigger of one subtask."""
    made: WindowTrigger = factory()
    made.begin_windows(windows)
    return made


def check_trigger(step: str | None, factory: Any) -> None:
    """Check that a factory makes triggers.

    Raises:
        GraphError: it does not.
    """
    made = factory() if callable(factory) else factory
    if not isinstance(made, WindowTrigger):
        raise GraphError(
            f"step {step!r}: triggered_window takes a class that is a weir.WindowTrigger, got {type(made).__name__}; "
            "early=weir.every(...) is for the usual ones"
        )
    kind, base = type(made), WindowTrigger
    if kind.process_batch is not base.process_batch or kind.on_timers is not base.on_timers:
        raise GraphError(
            f"step {step!r}: {kind.__name__} overrides what makes windows; override on_rows, on_event_time and "
            "on_processing_time"
        )
    if kind.on_rows is base.on_rows:
        raise GraphError(
            f"step {step!r}: {kind.__name__} has no on_rows(self, batch, context), which says of each row what "
            "happens, or registers timers; without it no window would ever tell"
        )
