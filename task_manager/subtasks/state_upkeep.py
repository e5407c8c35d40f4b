"""When the state of a subtask is written and swept: in steps between rows, so that none of them waits for all of it."""

from __future__ import annotations

from task_manager.exchange.output import Output
from task_manager.progress import SubtaskProgress
from weir.clock import Clock
from weir.operators.chain import OperatorChain

#: A flush of dirty state takes this share of its interval, in steps at least this far apart.
_FLUSH_SPREAD = 0.5
_FLUSH_STEP_S = 0.005
#: Rows wait for one step no longer than this and one write, also where others have the processor or the GIL.
_FLUSH_HOLD_S = 0.004
#: Intervals after a checkpoint, which writes all dirty state itself: where the next one comes about as soon as a flush
#: would, keys that change all the time are written once and not twice.
_FLUSH_WAITS = 2
#: After a step of the sweep of expired state: this many times its duration is for rows.
_SWEEP_REST = 9
#: Whether there is something to sweep is asked so often.
_SWEEP_LOOK_S = 1.0


class StateUpkeep:
    """Writes dirty state of a chain, and gives space of expired state back. One per subtask, called by its thread."""

    def __init__(
        self,
        chain: OperatorChain[Output],
        progress: SubtaskProgress,
        clock: Clock,
        flush_interval_ms: float,
    ) -> None:
        self._chain = chain
        self._progress = progress
        self._clock = clock
        self._interval_s = flush_interval_ms / 1e3
        self._next_flush_s = 0.0
        #: Monotonic second at which the flush under way began; 0: none.
        self._flush_began_s = 0.0
        #: Monotonic second at which expired state is swept next, when it was last, and how idle the subtask was then.
        self._next_sweep_s = self._swept_s = self._swept_idle_s = 0.0
        #: Monotonic second at which :meth:`step` has something to do; a small batch pays for every call.
        self.due_s = 0.0

    def begin(self) -> None:
        """The chain is open: the first flush comes in an interval."""
        self._next_flush_s = self._clock.monotonic_s() + self._interval_s

    def wrote_all(self, began_s: float) -> None:
        """A checkpoint, which began then, has written or noted all dirty state."""
        self._next_flush_s = self._clock.monotonic_s() + _FLUSH_WAITS * self._interval_s
        self._flush_began_s = 0.0
        self._note_due()
        self._note_hold(began_s)

    def step(self) -> None:
        """Write and sweep what is due, and note when that is needed next."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._next_flush_s:
            self._flush_part(now_s)
        if self._chain.tables.sweeps.are_wanted and now_s >= self._next_sweep_s:
            self._sweep(now_s)
        self._note_due()

    def _note_due(self) -> None:
        are_swept = self._chain.tables.sweeps.are_wanted
        self.due_s = min(self._next_sweep_s, self._next_flush_s) if are_swept else self._next_flush_s

    def _flush_part(self, now_s: float) -> None:
        """Write dirty state in steps spread over a part of the interval, so that no row waits for all of it."""
        self._flush_began_s = self._flush_began_s or now_s
        elapsed_s = now_s - self._flush_began_s
        share = min(1.0, (elapsed_s + _FLUSH_STEP_S) / (self._interval_s * _FLUSH_SPREAD))
        if self._chain.flush_part(share, lambda: self._clock.monotonic_s() - now_s > _FLUSH_HOLD_S):
            self._next_flush_s = self._flush_began_s + self._interval_s
            self._flush_began_s = 0.0
        else:
            self._next_flush_s = now_s + _FLUSH_STEP_S
        self._note_hold(now_s)

    def _note_hold(self, began_s: float) -> None:
        """State was written or noted since then, and rows waited."""
        hold_s = self._clock.monotonic_s() - began_s
        self._progress.busy_s += hold_s
        self._progress.state_hold_s_max = max(self._progress.state_hold_s_max, hold_s)

    def _sweep(self, now_s: float) -> None:
        """Give space of expired state back: in a tenth of the time at most, in half of it if there is little else."""
        has_more = self._chain.tables.sweeps.step(clock=self._clock)
        idle_s, self._swept_idle_s = self._progress.idle_s - self._swept_idle_s, self._progress.idle_s
        ended_s = self._clock.monotonic_s()
        is_idle = idle_s > (now_s - self._swept_s) / 2
        pause_s = (ended_s - now_s) * (1 if is_idle else _SWEEP_REST) if has_more else _SWEEP_LOOK_S
        self._swept_s, self._next_sweep_s = ended_s, ended_s + pause_s
        self._progress.busy_s += ended_s - now_s
