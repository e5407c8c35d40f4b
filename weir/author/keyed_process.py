"""What authors of keyed operators subclass. Inert: ``weir.operators.keyed.process_operator`` runs it in a subtask."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from weir.errors import GraphError

if TYPE_CHECKING:
    import pyarrow as pa

    from weir.author.key_context import KeyContext
    from weir.author.operator import OperatorContext

#: What ``process`` takes: rows, or whole batches.
ProcessForm = Literal["records", "batches"]
#: By which time an operator's timers go: "any": each as it is registered; "processing": all by the clock.
TimerTime = Literal["any", "processing"]
#: Hooks of the older form, and what only that needed.
_GONE = ("state_codec", "readable_codecs", "snapshot", "commit", "flush")
_FORMS = (
    "a weir.KeyedProcess has process(self, key, row, context) or process_batch(self, batch, context), and keeps its "
    "state in attributes of its class such as total = weir.ValueState(pl.Int64, default=0); see docs/write-a-job.md"
)


class KeyedHooks:
    """What is called besides rows in users' keyed operators, those with broadcast state included."""

    #: What must be in a checkpoint as it is here for the states to go on, as JSON; of windows that are such operators.
    state_form: Any = None
    #: What a checkpoint has that says nothing of it; None: what is needed.
    unsaid_form: ClassVar[Any] = None
    #: "processing" promises that no timer is registered by event time: nothing happens between two rows of a batch
    #: then, so that ``process_batch`` gets whole batches and not each key once at a time.
    timer_time: ClassVar[TimerTime] = "any"

    def open(self, context: OperatorContext) -> None:
        """Called once before the first rows; may block and read files. States have no current key here."""

    def on_timer(
        self, key: tuple[Any, ...], time_ms: int, context: KeyContext, /
    ) -> Iterable[Mapping[str, Any]] | None:
        """Override it to use ``context.timers``: called when a timer of a key fires; states stand for that key.

        Args:
            key: the values of the key columns.
            time_ms: what the timer was registered for, ms since the epoch.
            context: of this timer; ``context.timers.is_processing`` says whether it was registered by the clock.

        Returns:
            Dicts of exactly the declared columns, or None. Rows have the timer's time as their event time.
        """
        raise NotImplementedError

    def on_timers(self, batch: pa.RecordBatch, context: KeyContext, /) -> Iterable[pa.RecordBatch] | None:
        """The batch form of :meth:`on_timer`, which counts if both are there.

        Args:
            batch: at least one row, with the key columns, and in ``_event_time_ms`` the timer's time, ascending. A key
                may be there several times.
            context: ``context.keys(batch)`` are what ``get`` and ``put`` of states take.

        Returns:
            Batches of the declared columns, or None. One with as many rows as ``batch`` may leave the time columns out.
        """
        raise NotImplementedError

    def on_watermark(self, time_ms: int, /) -> Iterable[pa.RecordBatch] | None:
        """Called when the minimum watermark over all inputs rises; what it yields precedes the watermark.

        Returns:
            Batches of the declared columns with both time columns (``weir.with_times``), or None.
        """

    def finish(self) -> Iterable[pa.RecordBatch] | None:
        """Called once after the last rows of all inputs; returns what :meth:`on_watermark` returns."""

    def close(self) -> None:
        """Called once if :meth:`open` was called, also after a failure; releases resources."""


class KeyedProcess(KeyedHooks):
    """Base of users' keyed operators. State is declared as attributes of the class: see ``weir.author.states``.

    A subclass overrides one of :meth:`process` and :meth:`process_batch` (the latter counts if both are there), and
    any of the other methods. One thread calls all of them. Only declared state survives a restart and moves with its
    keys; other attributes of the object are lost.
    """

    def process(
        self, key: tuple[Any, ...], row: Any, context: KeyContext, /
    ) -> Iterable[Mapping[str, Any]] | None:
        """Called for each row; what it yields takes the times of the row.

        Args:
            key: the values of the key columns.
            row: a dict of the user columns.
            context: of this row; states stand for its key.

        Returns:
            Dicts of exactly the declared columns, or None.
        """
        raise NotImplementedError

    def process_batch(self, batch: pa.RecordBatch, context: KeyContext, /) -> Iterable[pa.RecordBatch] | None:
        """Called for each batch, Arrow in and Arrow out.

        Args:
            batch: at least one row, with the user columns and both time columns.
            context: ``context.keys(batch)`` are what ``get`` and ``put`` of states take.

        Returns:
            Batches of the declared columns, or None. One with as many rows as ``batch`` may leave the time columns out.
        """
        raise NotImplementedError


def process_form(kind: type) -> ProcessForm:
    """What a class is given; called when a job is built, and by the runtime.

    Raises:
        GraphError: it is no keyed process; the message says what to write.
    """
    name = kind.__name__
    if not issubclass(kind, KeyedProcess):
        raise GraphError(f"{name} is no weir.KeyedProcess; {_FORMS}")
    for hook in _GONE:
        if hasattr(kind, hook):
            raise GraphError(
                f"{name} has {hook}, which is of the older form and is not used any more; {_FORMS}"
            )
    if kind.process_batch is not KeyedProcess.process_batch:
        return "batches"
    if kind.process is KeyedProcess.process:
        raise GraphError(f"{name} has neither process nor process_batch; {_FORMS}")
    if not takes(kind.process, 3):
        raise GraphError(f"{name} has process{inspect.signature(kind.process)}; {_FORMS}")
    return "records"


def takes(function: Any, count: int) -> bool:
    """Return whether a method takes ``self`` and so many arguments by position."""
    try:
        inspect.signature(function).bind(*[None] * (count + 1))
    except TypeError:
        return False
    except ValueError:
        # Nothing is known of it.
        return True
    return True
