"""The contracts of runtime logic. A subtask owns its operators: one thread calls them, never two at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from weir.clock import Clock, SystemClock
from weir.errors import InputError
from weir.rows.records import WATERMARK_MIN_MS, Block, Due
from weir.rows.row_watermarks import RowWatermarks, TimeCuts

if TYPE_CHECKING:
    from weir.state.tables.opened import OperatorTables


#: A value that JSON can hold (None, bool, int, float, str, and lists and dicts of these).
Json = Any


class DeadLetters(Protocol):
    """Where records that cannot be processed go, with their position and the reason."""

    def reject(
        self, source: str, position: int, reason: str, raw: bytes, length_bytes: int | None = None
    ) -> None:
        """Write one rejected record durably enough to survive the process; count it.

        Args:
            source: file path (or other origin) of the record.
            position: byte offset of the record in ``source``; -1 where there is none.
            reason: one line a person understands.
            raw: the record's bytes; long ones are cut in the file, their full length is kept.
            length_bytes: full length where ``raw`` is only the record's beginning; else None.

        Raises:
            InputError: the job was told to stop at the first bad record.
        """


@runtime_checkable
class RepeatableDeadLetters(DeadLetters, Protocol):
    """Dead letters that a source can go back in: what it rejects again is not written again."""

    def position_bytes(self) -> int:
        """How much was written so far; for the snapshot."""

    def skip_known(self, positions: Mapping[int, int]) -> None:
        """Do not write again what subtasks wrote after these positions; before the first ``reject``.

        Args:
            positions: by subtask index, what ``position_bytes`` returned at the snapshot.
        """


@dataclass(frozen=True)
class OperatorContext:
    """What a subtask hands to its operators in :meth:`Operator.open`."""

    job_name: str
    operator_name: str
    stage_index: int
    subtask_index: int
    parallelism: int
    max_parallelism: int = 128
    #: Rows at which a batch is cut.
    batch_size: int = 32_768
    #: How long a row of a paced source may wait for others, so that batches are larger.
    gather_ms: float = 0
    #: Epoch µs at which the job started; paced sources schedule from it, the same in all subtasks.
    job_start_us: int = 0
    clock: Clock = field(default_factory=SystemClock)
    #: What the operator opens its declared states with, in ``open``; None in steps without keyed state.
    tables: OperatorTables | None = None
    dead_letters: DeadLetters | None = None
    #: The operator writes to the outside: what it raises is about the place it writes to, not about rows.
    is_sink: bool = False
    #: Fence of the deployment; grows with every restart. Names of pending files hold it.
    generation: int = 1
    #: What this operator's ``snapshot`` returned in the checkpoint that the job starts from: of *all* its subtasks
    #: then, by their index. Empty at a start from nothing. How it is shared among today's
    #: subtasks is the operator's business.
    restored: Mapping[int, Json] = field(default_factory=dict)
    #: Subtask indices of the stage now, ascending.
    subtask_indices: tuple[int, ...] = ()
    #: A split or an input without data for so long does not hold back the watermark.
    idle_timeout_ms: float = 1000
    #: Watermarks follow the highest event time at this distance, unless a step says otherwise.
    grace_period_ms: int = 2000
    #: Facts for sidecars: configuration of the run, as JSON-able values.
    run_facts: dict[str, object] = field(default_factory=dict)
    #: User columns of what the operator yields, as the graph has them; None where nobody asks for them (tests).
    schema: pa.Schema | None = None
    #: User columns of what comes in by the first input; None: nobody says.
    input_schema: pa.Schema | None = None
    #: Where a sink may keep rows that it has not delivered, for any later process of the job: a directory or a URI of
    #: its own in the checkpoint store. Empty: the job makes no checkpoints.
    durable_uri: str = ""
    #: Names of the step's side outputs that somebody reads; what it yields for others is dropped.
    sides_read: frozenset[str] = frozenset()
    #: Which batches of the job say what the watermark is as of each row.
    row_watermarks: RowWatermarks = RowWatermarks.NONE
    #: Rows that wait in front of the step leave in the order of their event times (``Node.sorts_times``).
    sorts_times: bool = False
    #: Barriers pass while much is fired at once: see ``weir.operators.pauses``.
    fires_in_parts: bool = False
    #: Ends the sleep of the subtask, whose source has something; called by any thread. None: nobody sleeps.
    wake: Callable[[], None] | None = None


class Operator(ABC):
    """Turns input batches into output batches. All methods are called by the subtask's thread.

    Among the batches that it yields may be ``weir.side(output, batch)``, for side outputs that its step declares.
    """

    #: A step whose inputs are not alike, such as a join, gets the rows of one input at a time in ``process_input``; any
    #: other gets those of all inputs in ``process``.
    tells_inputs_apart: ClassVar[bool] = False
    #: What it makes of rows has their event times, and only these say of which rows it was made: of the rows of one
    #: time it gets late ones and others in batches of their own.
    knows_rows_by_time: bool = False

    def open(self, context: OperatorContext) -> None:
        """Called once before the first batch; may block and read files."""

    @abstractmethod
    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Called for every input batch (at least one row), in channel order. Yields zero or more batches.

        Raises:
            Exception: anything raised here fails the job, with the operator's name as the cause.
        """

    def process_input(self, input_index: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """As :meth:`process`, with the input that the rows came from; called if ``tells_inputs_apart``.

        Args:
            input_index: position among the step's inputs.
            batch: at least one row, of this input only.
        """
        return self.process(batch)

    def on_watermark(self, time_ms: int) -> Iterable[pa.RecordBatch]:
        """Called when the minimum watermark over all inputs rises; what it yields precedes the watermark."""
        return ()

    def on_input_watermark(self, input_index: int, time_ms: int) -> None:
        """Called with the watermark of one input alone, if ``tells_inputs_apart``; it may be ahead of the minimum.

        Rows of this input that come after it are at or above it, or late. It falls when the input gets a new channel.
        """

    def flush(self) -> None:
        """Called every ``state_flush_interval_ms``, at a barrier and before the end: write what is buffered outside.

        Also before key groups move to another subtask, which goes on with their rows: what was written comes first.
        For operators with files and the like; state is written by its tables.
        """

    def snapshot(self, checkpoint_id: int) -> Json:
        """Called at the barrier of a checkpoint, after :meth:`flush`: what it takes, besides keyed state, to go on.

        A sink makes everything that it has received durable, but not visible; ``commit`` does that later.
        Also called once after :meth:`finish`, with checkpoint id 0: the last snapshot counts for every later
        checkpoint. A later deployment finds what was given in ``context.restored``.
        """
        return None

    def commit(self, checkpoint_id: int) -> None:
        """A checkpoint is complete: make visible what was snapshotted up to it, id 0 only if this one is 0.

        May come late, twice, not at all for some checkpoint (a later one then covers it), and after ``close``, in any
        thread, but never while another method of the operator runs.
        """

    def drain(self) -> Iterable[pa.RecordBatch]:
        """Called before a barrier is passed on: yields what is under way, of which no snapshot tells."""
        return ()

    def finish(self) -> Iterable[pa.RecordBatch]:
        """Called once after the last batch of all inputs."""
        return ()

    def close(self) -> None:
        """Called exactly once if ``open`` was called, also after a failure; releases resources."""


#: Of :meth:`TimedOperator.due_us`: never, as far as is known.
NEVER_US = 2**62


#: Is told of what made an operator raise, as a row, and of the error; returns whether that was put aside.
SetAside = Callable[[pa.RecordBatch, BaseException], bool]


class TimedOperator(Operator):
    """An operator that has something to do when a moment of the clock comes, also while no rows do."""

    #: Set while the step's rows are isolated: what is due, and makes the author's code raise, is put aside.
    set_aside: SetAside | None = None

    @abstractmethod
    def due_us(self) -> int:
        """Wall clock (epoch µs) at which :meth:`on_time` has something to do; 0: now; ``NEVER_US``.

        Asked for before every sleep of the subtask and after every batch: it must cost next to nothing.
        """

    @abstractmethod
    def on_time(self) -> Iterable[pa.RecordBatch]:
        """Called between two batches when :meth:`due_us` has come, and perhaps sooner."""


@runtime_checkable
class ChecksRestored(Protocol):
    """An operator that says whether it can read the state that a checkpoint has."""

    def check_restored(self, context: OperatorContext) -> None:
        """Touches nothing. Part of ``open``, and of ``weir plan``.

        Raises:
            StateMismatchError: it cannot, with what is stored and what the job needs.
        """


class SecondOperator(Operator):
    """An operator that takes what the one before it yields, under the name of the same step."""


class DividedOperator(Operator):
    """An operator that may leave a part of its step's work to another one."""

    #: The other one; None: this one does all.
    second: SecondOperator | None = None


class WaitingOperator(Operator):
    """An operator whose :meth:`drain` may take long: a barrier passes the rows that it waits for."""

    @abstractmethod
    def under_way(self) -> Iterable[pa.RecordBatch]:
        """Rows that it has taken and of which nothing has left: all that :meth:`drain` would wait for.

        Where a barrier does not wait for them, it is given them again after a restart.
        """


class InTimeOperator(Operator):
    """An operator that is told of the watermark between rows, where it matters which of them come before it."""

    @property
    @abstractmethod
    def time_cuts(self) -> TimeCuts:
        """Before which rows of a batch :meth:`on_watermark` is called; asked once, when the operator is open."""

    @abstractmethod
    def due_ms(self) -> int:
        """The lowest watermark at which something happens that rows may tell; the lowest time: any may be."""

    def late_keys(self, batch: pa.RecordBatch) -> np.ndarray | None:
        """A hash of the key of each row (uint64, shape (rows,)), for ``TimeCuts.EACH_LATE``.

        None, by default: all rows are of one key.
        """
        return None

    def made_due_ms(self, batch: pa.RecordBatch) -> np.ndarray | None:
        """Of each row the lowest watermark at which something happens because of it; int64, shape (rows,).

        None, by default: nothing, or the operator looks at that itself.
        """
        return None


#: Of an operator that :class:`HoldsRows`, the input whose rows it may hold.
HELD_INPUT = 0


class HoldsRows(Operator):
    """An operator with several inputs that may hold rows of the first one back until something else has come.

    While it does, the watermark of its subtask stands still for it and for all that comes after it, and rows say what
    it is as of them in the first input alone.
    """

    @property
    @abstractmethod
    def holds_time(self) -> bool:
        """Whether rows that it has taken, or will, leave later; asked after every batch."""

    @property
    @abstractmethod
    def may_release(self) -> bool:
        """Whether it has rows that need not be held any more."""

    @abstractmethod
    def release(self, watermark_ms: int) -> Iterable[pa.RecordBatch]:
        """Called as soon as :attr:`may_release`, with the watermark of all inputs, of which it is told afterwards."""

    @property
    @abstractmethod
    def is_full(self) -> bool:
        """Whether it holds so many rows that no more should be sent."""


class LateDelivery(Operator):
    """A sink that does not hold rows up while it delivers: ``commit`` may return before it has."""

    @abstractmethod
    def await_commit(self) -> None:
        """Return when what ``commit`` began is done; called where somebody waits for what it makes visible."""

    @abstractmethod
    def settle(self) -> None:
        """Called before key groups move to another subtask, which goes on with their rows.

        Return when all that was written so far comes before what that one writes. :meth:`flush` was called.
        """


class LateSync(Operator):
    """A sink that does not hold rows up while a disk takes what its snapshot tells of."""

    @abstractmethod
    def sync(self) -> None:
        """Make durable what the last :meth:`snapshot` told of, and return when it is.

        Called after each snapshot, before its checkpoint can be complete: in another thread, while rows may come, or
        after :meth:`close`; in the subtask's thread at its end.

        Raises:
            WeirError: it is not durable, which fails the checkpoint.
        """


class TimeAssigner(Operator):
    """An operator after which rows have another event time.

    Watermarks that come to it end there. It makes those of the operators, and of the stages, after it.
    """

    @property
    @abstractmethod
    def watermark_ms(self) -> int:
        """Of the rows that it has given out, ms since the epoch; never goes back."""

    @property
    @abstractmethod
    def idle_at_s(self) -> float:
        """Monotonic second from which on it does not hold the watermark back, unless rows come."""


@dataclass(slots=True)
class Poll:
    """What one call of :meth:`SourceReader.poll` returned; never changed. To make a frozen one costs more."""

    #: Rows with system columns, or None.
    batch: pa.RecordBatch | None = None
    #: About how many bytes these rows occupy, for metrics.
    size_bytes: int = 0
    #: The largest event time up to these rows; watermarks follow it.
    event_time_ms_max: int = WATERMARK_MIN_MS
    #: Instead: the watermark after these rows, ms since the epoch; one that is lower than before changes nothing.
    watermark_ms: int | None = None
    #: Wall clock (epoch µs) before which another poll is useless; 0 = poll again at once.
    next_poll_us: int = 0
    #: No more rows will ever come.
    finished: bool = False
    #: Instead of ``batch``: rows of a block that was looked at before (:meth:`SourceReader.look_ahead`), or of which a
    #: column is to be read before the next poll (:meth:`SourceReader.give_late`).
    due: Due | None = None
    #: Of :meth:`SourceReader.begin`: indices of other subtasks that have nothing to read, as this one knows.
    without: tuple[int, ...] = ()


class AheadFilter(Operator):
    """An operator that only drops rows, and can often tell of rows that come later which it will drop."""

    @abstractmethod
    def kept_ahead(self, batch: pa.RecordBatch) -> np.ndarray | None:
        """Which of these rows, which come later, it will keep as they are; it drops the others.

        Called before the rows are due, and instead of :meth:`process`. Rows must not depend on each other.

        Returns:
            Bool, shape (rows,); None: only :meth:`process` can tell.
        """


class SourceReader(ABC):
    """Reads one subtask's splits. All methods are called by the subtask's thread."""

    @abstractmethod
    def open(self, context: OperatorContext) -> None:
        """Choose this subtask's splits (by ``subtask_index`` of ``parallelism``) and prepare to read.

        Raises:
            InputError: an input is absent or unreadable.
        """

    def look_ahead(self, look: Callable[[pa.RecordBatch], Block | None]) -> None:
        """Ask ``look`` about rows that are decoded and not due yet; a reader need not. Called once, before ``open``.

        What it returns goes into :attr:`Poll.due`; None: the rows go into :attr:`Poll.batch`.
        """

    def give_late(self, but: Collection[str]) -> None:
        """A column, none of these, may come late, so that a block of :attr:`Poll.due` lacks it; a reader need not.

        Called once, before ``open``.
        """

    def begin(self) -> Poll:
        """Returns, without rows, what is known of event time before the first one, and who will never have a row.

        Called once, after ``open`` and before :meth:`poll`. Consumers are told of it before any row of the others,
        which would be processed as if time stood still otherwise.
        """
        return Poll()

    @abstractmethod
    def poll(self, rows_max: int) -> Poll:
        """Give at most ``rows_max`` rows that are due. Must not sleep; may block on a disk read.

        Rows that lack a column may be some more, because an exchange divides them; see :meth:`give_late`.
        """

    def prepare(self) -> Block | None:
        """Do what a later poll would need time for; called when there is nothing to do until the next poll.

        May block as :meth:`poll` does. Returns rows that were looked at, if that was done now.
        """
        return None

    def snapshot(self) -> Json:
        """What it takes to read on from here: everything before it was given out by :meth:`poll`, nothing after it.

        Called between two polls, and after the end. A later deployment finds it in ``context.restored``, by the
        index of the subtask that gave it; with other subtasks, ``open`` shares what was not read among them.

        Raises:
            InputError: the source cannot be read again from a position.
        """
        raise InputError("this source cannot be read again from a position: it takes no part in checkpoints")

    def commit(self, checkpoint_id: int) -> None:
        """A checkpoint is complete; for sources that tell others how far they are. Later ones may have begun."""

    @property
    def lags(self) -> Mapping[str, int]:
        """Records that wait to be read, by partition, as far as known; ``/status`` and metrics show them.

        Asked by another thread, for each heartbeat, between :meth:`open` and :meth:`close`; must not wait.
        """
        return {}

    @property
    def rows_overdue(self) -> int | None:
        """Rows that should have been given out by now, by a rate of the source; None: it has none. As :attr:`lags`."""
        return None

    @property
    def input_plan(self) -> int:
        """A number below 2^64 that tells how the subtasks have divided what there is to read; 0: they have not.

        Each subtask looks by itself. Where two have other numbers they have seen other files or splits: some would be
        read twice, or by nobody, so the job fails. Asked after :meth:`open`, also by other threads and after the end.
        """
        return 0

    def close(self) -> None:
        """Called exactly once if ``open`` was called; releases files."""
