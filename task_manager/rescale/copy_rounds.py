"""Copies what one owner has cached of groups to one new owner, in rounds: all of it, then what changed meanwhile.

The owner goes on, so something always changes. What changed since the last round is sent at the handover, and rows of
the groups wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from task_manager.rescale.copy_pace import (
    COPIED_AT_FIRST,
    COPIED_BYTES_MAX,
    WRITTEN_AT_FIRST,
    needs_round,
    next_part,
    part_bytes_max,
)
from task_manager.rescale.copy_sender import CopySender
from weir import threads
from weir.clock import Clock
from weir.state.tables.cached_entries import CachedPart

if TYPE_CHECKING:
    from task_manager.ownership.group_state import SubtaskGroupState
    from task_manager.subtasks.running import RunningSubtask

#: Rows have the owner for themselves for this many times as long as writing or copying a part took.
_PAUSE_FACTOR = 3.0
#: More than ever changes.
_EVERYTHING_BYTES = 1 << 62


class GroupsCopy:
    """The groups that one owner gives to one other in a rescale. Called by the thread that copies."""

    def __init__(
        self,
        running: RunningSubtask,
        group_state: SubtaskGroupState,
        sender: CopySender | None,
        version: int,
        groups: Sequence[int],
        clock: Clock,
        sleep: Callable[[float], None],
        *,
        hurries: bool,
        bytes_max: int = COPIED_BYTES_MAX,
    ) -> None:
        """``sender`` to the new owner; None: what is cached is not copied.

        ``hurries``: dirty entries are written without pauses. ``bytes_max``: of what is copied at first.
        """
        self.groups = groups
        #: Whether what is cached is copied, to another task manager.
        self.is_away = sender is not None
        self._mailbox = running.subtask.mailbox
        self._state = group_state
        self._sender = sender
        self._version = version
        self._clock = clock
        self._sleep = sleep
        self._bytes_max = bytes_max
        self._write_pause_factor = 0.0 if hurries else _PAUSE_FACTOR
        #: Groups of which the new owner has entered a copy.
        self._taken: list[int] = []
        #: Bytes that had changed when the latest round came to them.
        self._changed_bytes = _EVERYTHING_BYTES

    def copy_all(self, deadline_s: float) -> None:
        """Copy what is cached until all is copied, the time is over or the new owner does not take it."""
        left = self._owned(self.groups)
        at_once, sent_bytes, began_s = COPIED_AT_FIRST, 0, self._clock.monotonic_s()
        while left and self._sender is not None:
            part, rest = left[:at_once], left[at_once:]
            now_s = self._clock.monotonic_s()
            bytes_max = part_bytes_max(
                len(part), len(left), sent_bytes, now_s - began_s, deadline_s - now_s, self._bytes_max
            )
            copied: list[CachedPart] = []
            copying = _Timed(partial(self._copy, part, bytes_max, copied), self._clock)
            if not self._is_done(copying, deadline_s) or not self._send(part, copied, deadline_s):
                return
            self._taken += part
            sent_bytes += _bytes_of(copied)
            self._pause(now_s, copying)
            at_once, left = next_part(at_once, copying.duration_s), rest

    def copy_changes(self, deadline_s: float) -> bool:
        """Copy what has changed since the last round; returns whether another round is worth its while."""
        left, self._taken = self._owned(self._taken), []
        at_once, sent_bytes = WRITTEN_AT_FIRST, 0
        while left:
            part, rest = left[:at_once], left[at_once:]
            now_s = self._clock.monotonic_s()
            good: list[int] = []
            changed: list[CachedPart] = []
            copying = _Timed(partial(self._copy_changes, part, good, changed), self._clock)
            if now_s >= deadline_s or not self._is_done(copying, deadline_s):
                return False
            if not self._send(good, changed, deadline_s):
                return False
            self._taken += good
            sent_bytes += _bytes_of(changed)
            self._pause(now_s, copying)
            at_once, left = next_part(at_once, copying.duration_s), rest
        before_bytes, self._changed_bytes = self._changed_bytes, sent_bytes
        return needs_round(sent_bytes, before_bytes)

    def write(self, deadline_s: float) -> None:
        """Write dirty entries of the groups, some groups at a time; what is left is written with the rest."""
        left, at_once = list(self.groups), WRITTEN_AT_FIRST
        while left:
            part, left = left[:at_once], left[at_once:]
            writing = _Timed(partial(self._state.flush_groups, part), self._clock)
            if not self._is_done(writing, deadline_s):
                return
            self._sleep(self._write_pause_factor * writing.duration_s)
            at_once = next_part(at_once, writing.duration_s)

    # --- the owner's thread runs these ---

    def _copy(self, groups: Sequence[int], bytes_max: int, copied: list[CachedPart]) -> None:
        copied += self._state.copy_groups(self._version, groups, bytes_max)

    def _copy_changes(self, groups: Sequence[int], good: list[int], changed: list[CachedPart]) -> None:
        copied, entries = self._state.copy_changes(self._version, groups)
        good += copied
        changed += entries

    # --- parts of a round ---

    def _owned(self, groups: Sequence[int]) -> list[int]:
        """Return those of these groups that are still here: a command may come late."""
        epochs = self._state.backend.ownership.epochs()
        return [group for group in groups if group in epochs]

    def _send(self, groups: Sequence[int], entries: Sequence[CachedPart], deadline_s: float) -> bool:
        """Send entries of groups, and note that their new owner has them; False: it has not."""
        epochs = self._state.backend.ownership.epochs()
        if self._sender is None or not epochs.keys() >= set(groups):
            return False
        sender = replace(self._sender, deadline_s=deadline_s)
        if not sender.send({group: epochs[group] + 1 for group in groups}, entries):
            return False
        self._mailbox.post(partial(self._state.copy_taken, self._version, groups))
        return True

    def _pause(self, began_s: float, copying: _Timed) -> None:
        """Let rows have the owner for themselves; sending counts as such time."""
        until_s = began_s + (1 + _PAUSE_FACTOR) * copying.duration_s
        self._sleep(max(0.0, until_s - self._clock.monotonic_s()))

    def _is_done(self, command: _Timed, deadline_s: float) -> bool:
        """Run a command of the owner's; False also if it failed or the subtask has ended."""
        done: Future[None] | None = self._mailbox.post(command)
        left_s = max(0.0, deadline_s - self._clock.monotonic_s())
        return done is not None and threads.wait([done], left_s) and done.exception() is None


class _Timed:
    """A command that notes how long it took."""

    def __init__(self, command: Callable[[], None], clock: Clock) -> None:
        self._clock = clock
        self._command = command
        self.duration_s = 0.0

    def __call__(self) -> None:
        began_s = self._clock.monotonic_s()
        self._command()
        self.duration_s = self._clock.monotonic_s() - began_s


def _bytes_of(entries: Sequence[CachedPart]) -> int:
    return sum(part.size_bytes for part in entries)
