"""Rows on their way into the steps of a chain, and where each step is with those that it was given.

A step before may tell much at once, for which a slow step takes long. So a step takes what waits for it in parts that
are bounded by the time they take, and barriers pass between two of them: what waits then is part of the checkpoint.

A pause, where barriers pass though operators are not done, comes where one has yielded one (``weir.operators.pauses``),
or has taken such a part. What operators before it are about to yield is drawn up to their own next pause, so that their
state is that after it; then rows are parked, and a restart takes them up again.

What a batch takes is a fixed part and a part for each row. Both are estimated from the latest batches: where the fixed
part decides, as with a read from a database, smaller batches would make everything slower and nothing sooner.

What one watermark makes due fires in the order of time: so a part is all that is due up to a time, or some of what is
due at one time. How far that time may lie ahead, and how many may fire together, follows from how long the latest parts
took.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from weir.author.operator import Operator, OperatorContext, WaitingOperator
from weir.clock import SystemClock
from weir.errors import CheckpointError
from weir.rows.records import WATERMARK_MIN_MS

#: The subtask looks around between two parts of rows, seconds after it did so last.
_LOOK_S = 0.1
#: Rows of the first batch of a step of which nothing is known, and how much one batch may raise the number, or one part
#: the span of the next.
ROWS_AT_FIRST, _GROWTH_MAX = 16, 4
#: Rows are to take so long, or as long as the fixed part of a batch if that is more; seconds.
PART_S = 0.2
#: And so long where all of it is waiting for a store elsewhere, which reads for many rows in about the same time.
WAITED_PART_S = 1.0
#: Weight of what was known, at each batch.
_KEPT = 0.8
#: Numbers of rows that differ by less say nothing about the fixed part; of their mean.
_SPREAD_MIN = 0.1
_SPAN_MS_MAX = 1 << 60
#: A part is to have this share of the timers that it may have.
_FULL = 0.75


class WaitingRows(NamedTuple):
    """Rows that wait for a step, in a checkpoint."""

    #: Which of the steps, see :func:`step_keys`.
    step: str
    batch: pa.RecordBatch
    #: The watermark that the step knew.
    known_ms: int


class StepFlow:
    """What a chain keeps for one of its steps, and sets."""

    def __init__(self, rows_max: int) -> None:
        """``rows_max``: of the largest batch."""
        self.parts = PartRows(rows_max)
        #: The watermark that it was told of, and what that is as of the last row that it was given.
        self.told_ms = self.reached_ms = WATERMARK_MIN_MS
        #: Rows that it takes next.
        self.waiting: deque[pa.RecordBatch] = deque()
        #: What it is given just now, and the row up to which it has taken it; None: nothing.
        self.given: pa.RecordBatch | None = None
        self.taken = 0
        #: The watermark as of the last of those that it is taking now.
        self.all_taken_ms = WATERMARK_MIN_MS
        #: What it yields just now, and what of :attr:`given` that is about; None: it yields nothing, it is of no rows.
        self.outputs: Iterator[Any] | None = None
        self.batch: pa.RecordBatch | None = None
        #: The latest that it has yielded was a pause, after so many of those rows; None: no pause.
        self.at_pause: int | None = None

    def begin(self, outputs: Iterator[Any], batch: pa.RecordBatch | None) -> None:
        """Note what the step is about to yield, of these rows or of none."""
        self.outputs, self.batch, self.at_pause = outputs, batch, None

    def next_part(self) -> pa.RecordBatch:
        """Rows that wait, as many as it is to take at once."""
        part = self.waiting.popleft()
        rows = self.parts.rows
        if part.num_rows > rows and self.parts.is_limited:
            self.waiting.appendleft(part.slice(rows))
            part = part.slice(0, rows)
        return part

    @property
    def known_ms(self) -> int:
        """The watermark as of the rows that it has taken."""
        taken_ms = self.all_taken_ms if self.at_pause is None else WATERMARK_MIN_MS
        return max(self.told_ms, self.reached_ms, taken_ms)

    @property
    def rest(self) -> pa.RecordBatch | None:
        """Rows that the step was given and has not taken; None: it was given none."""
        if self.given is None:
            return None
        taken = self.taken
        if self.at_pause is not None and self.batch is not None:
            taken += self.at_pause - self.batch.num_rows
        return self.given.slice(taken)


def step_keys(names: list[str]) -> list[str]:
    """Names of the steps of a chain, told apart where one step has two operators."""
    found: list[str] = []
    for name in names:
        found.append(f"{name}#{names[: len(found)].count(name) + 1}" if name in names[: len(found)] else name)
    return found


class ChainPauses:
    """What the steps of one chain have on their way; used by the chain, and asked by its subtask."""

    def __init__(self, steps: Sequence[tuple[Operator, OperatorContext]]) -> None:
        self._steps = steps
        #: Rows on their way into each operator.
        self.flows = [StepFlow(context.batch_size) for _, context in steps]
        #: Called where barriers may pass, and the chain takes rows again only afterwards; None: nobody minds. It gets
        #: what the first operator has on its way, also what changes there when :meth:`OperatorChain.park` draws it on.
        self.on_pause: Callable[[StepFlow], None] | None = None
        #: The last operator that may be about to yield more, at a pause; None: there is no pause.
        self.paused_at: int | None = None
        #: What is under way is named by these in checkpoints.
        self._keys = step_keys([context.operator_name for _, context in steps])
        #: No pause: a barrier is being passed on, or key groups move.
        self._is_draining = False
        self._drains_until_s: float | None = None
        #: Monotonic second at which the subtask last looked around at a pause.
        self._looked_s = float("-inf")
        clock = steps[0][1].clock if steps else SystemClock()
        self.now_s = clock.monotonic_s

    def drain(self, send: Callable[[int], None], until_s: float | None) -> None:
        """Let operators ``send`` what they hold back; what they would yield after a moment they keep.

        What is under way before a pause is parked.
        """
        self._is_draining, self._drains_until_s = True, until_s
        first = 0 if self.paused_at is None else self.paused_at + 1
        for index in range(first, len(self._steps)):
            if holds_back(self._steps[index][0]):
                send(index)
        self._is_draining, self._drains_until_s = False, None

    def is_over(self) -> bool:
        """Returns whether what is drained has taken too long."""
        return self._drains_until_s is not None and self.now_s() >= self._drains_until_s

    def pause(self, index: int, now_s: float) -> None:
        """No operator after this one has anything to do: let the subtask look around, unless it has just done so."""
        if self.on_pause is None or self._is_draining or self.paused_at is not None:
            return
        if now_s - self._looked_s < _LOOK_S:
            return
        self.paused_at, self._looked_s = index, now_s
        self.on_pause(self.flows[0])
        self.paused_at = None

    def unfinished(self) -> list[int]:
        """Returns, at a pause, the operators that are about to yield more, and not at a pause of their own."""
        if self.paused_at is None:
            return []
        flows = enumerate(self.flows[: self.paused_at + 1])
        return [index for index, flow in flows if flow.outputs is not None and flow.at_pause is None]

    def park(self, *, with_first: bool) -> list[WaitingRows]:
        """Returns rows that are on their way, in the order in which they are to be resumed; see the chain."""
        found = []
        for index in reversed(range(len(self._steps))):
            operator, flow = self._steps[index][0], self.flows[index]
            rows = list(operator.under_way()) if isinstance(operator, WaitingOperator) else []
            if (index or with_first) and (rest := flow.rest) is not None:
                rows.append(rest)
            rows += flow.waiting
            known_ms = flow.known_ms
            found += [WaitingRows(self._keys[index], batch, known_ms) for batch in rows if batch.num_rows]
        return found

    def bring_back(self, rows: Sequence[WaitingRows]) -> list[int]:
        """Let rows that were parked wait again; returns for which operators: what has come furthest goes first.

        Raises:
            CheckpointError: a step that they wait for is not here any more.
        """
        for item in rows:
            if item.step not in self._keys:
                raise CheckpointError(
                    f"the checkpoint has rows under way to step {item.step.split('#')[0]!r}, which is not behind the "
                    "same steps any more; let the job as it was go on until they have passed, and start this one from "
                    "a later savepoint"
                )
            flow = self.flows[self._keys.index(item.step)]
            flow.waiting.append(item.batch)
            flow.reached_ms = min(each.known_ms for each in rows if each.step == item.step)
        return [index for index in reversed(range(len(self.flows))) if self.flows[index].waiting]


def holds_back(operator: Operator) -> bool:
    """Returns whether an operator yields later what it makes of rows, and is to be drained for barriers."""
    return type(operator).drain is not Operator.drain


class PartRows:
    """The rows that a subtask takes at a time; its thread calls the methods."""

    def __init__(self, rows_max: int) -> None:
        """``rows_max``: rows of the largest batch."""
        self._rows_max = rows_max
        #: Take at most so many.
        self.rows = min(ROWS_AT_FIRST, rows_max)
        self._weight = self._n = self._t = self._nn = self._nt = self._waited = 0.0

    @property
    def is_limited(self) -> bool:
        """Return whether larger batches than :attr:`rows` are to be cut: no step is slow else, whatever a batch has."""
        return self.rows < self._rows_max

    def took(self, rows: int, elapsed_s: float, waited_s: float = 0.0) -> None:
        """Note that rows were processed in so many seconds, of which so many went by waiting for a store elsewhere."""
        if elapsed_s * _GROWTH_MAX <= PART_S:
            if self.rows < self._rows_max and rows * 2 >= self.rows:
                self.rows = min(self.rows * _GROWTH_MAX, self._rows_max)
            self._weight = 0.0
            return
        kept = _KEPT if self._weight else 0.0
        self._weight = self._weight * kept + 1
        self._n, self._t = self._n * kept + rows, self._t * kept + elapsed_s
        self._waited = self._waited * kept + waited_s
        self._nn, self._nt = self._nn * kept + rows * rows, self._nt * kept + rows * elapsed_s
        wanted = self._wanted()
        grown = min(max(wanted, 1.0), self.rows * _GROWTH_MAX, self._rows_max)
        # Few rows say little of what many would take.
        if grown <= self.rows or rows * 2 >= self.rows:
            self.rows = int(grown)

    def _wanted(self) -> float:
        mean_n, mean_t = self._n / self._weight, self._t / self._weight
        spread = self._nn / self._weight - mean_n * mean_n
        row_s, fixed_s = mean_t / mean_n, 0.0
        if spread > (_SPREAD_MIN * mean_n) ** 2:
            row_s = (self._nt / self._weight - mean_n * mean_t) / spread
            fixed_s = mean_t - row_s * mean_n
        if row_s <= 0:
            # Fewer rows took longer: something else does.
            return float(self.rows)
        part_s = PART_S + (WAITED_PART_S - PART_S) * min(self._waited / self._t, 1.0)
        return max(part_s, fixed_s) / row_s


class FiringParts:
    """Keeps the parts of an operator that fires in parts, called by its subtask's thread."""

    def __init__(self, count_max: int, *, is_timed: bool = True) -> None:
        """``count_max``: of what fires in one part; ``is_timed``: a part is bounded by its time, too."""
        self._count_max, self._is_timed = count_max, is_timed
        self._counts = PartRows(count_max)
        self._span_ms = 0 if is_timed else _SPAN_MS_MAX

    @property
    def count(self) -> int:
        """Fire at most so many."""
        return self._counts.rows if self._is_timed else self._count_max

    @property
    def longest_s(self) -> float:
        """Seconds after which a part ends, though more was to fire in it."""
        return PART_S

    def until_ms(self, first_ms: int, last_ms: int) -> int:
        """The time up to which the next part fires, if the first is due at ``first_ms`` and all up to ``last_ms``."""
        return min(first_ms + self._span_ms, last_ms)

    def narrowed_ms(self, first_ms: int, until_ms: int) -> int:
        """More than :attr:`count` is due up to ``until_ms``: an earlier time, at the earliest the first one."""
        self._span_ms = (until_ms - first_ms) // _GROWTH_MAX
        return first_ms + self._span_ms

    def took(self, count: int, elapsed_s: float) -> None:
        """Note that so many fired, in so many seconds."""
        if not self._is_timed:
            elapsed_s = 0.0
        self._counts.took(max(count, 1), elapsed_s)
        if elapsed_s * _GROWTH_MAX <= PART_S and count < self.count:
            # Nearly as many as may fire: one more would make the next part be looked for twice.
            growth = min(_FULL * self.count / max(count, 1), _GROWTH_MAX)
            self._span_ms = min(max(int(self._span_ms * growth), 1), _SPAN_MS_MAX)
