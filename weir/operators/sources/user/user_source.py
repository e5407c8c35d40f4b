"""Runs a :class:`weir.Source`: shares its splits, reads them in turn, keeps positions, and makes the watermark."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weir.author.operator import Json, OperatorContext, Poll
from weir.author.source import Rows, Source
from weir.errors import GraphError, InputError
from weir.operators.sources.files.discovery import Discovery
from weir.operators.sources.files.own_copies import own_copy
from weir.operators.sources.files.positions import SourceCounts, time_from_json, time_to_json
from weir.operators.sources.files.splits import assign, plan_number, share_evenly
from weir.operators.sources.paced.pacing import BatchSource
from weir.operators.sources.paced.source_progress import DecodedRows
from weir.operators.sources.user.source_rows import checked_rows
from weir.operators.sources.user.user_splits import (
    OpenSplit,
    position_from_json,
    position_to_json,
    split_key,
)
from weir.specs import UserSourceSpec

#: How soon, and how late, a split that has nothing is asked again.
_WAIT_US_MIN, _WAIT_US_MAX = 5_000, 500_000
#: Of so many turns one goes by the order of splits alone: one that stays behind does not stop the others.
_TURNS_OF_THE_LAST = 32


@dataclass
class _Given:
    """What was read last: rows of one split, some of which may not be given out yet."""

    split: OpenSplit
    position: Json
    rows: int
    #: Numbers, in what was read, of the rows that are given out; int64.
    good: np.ndarray
    #: Where it was read in parts: how many rows there are up to the end of each, and the position there.
    ends: Sequence[int] = ()
    positions: Sequence[Json] = ()


class UserSourceReader(BatchSource):
    """Reads one subtask's splits of a user's source."""

    def __init__(self, spec: UserSourceSpec, source: Source) -> None:
        super().__init__(spec)
        self._spec = spec
        self._source = source
        time_column = spec.event_time_column
        self._schema_read = spec.schema_read
        self._required = [f.name for f in self._schema_read if not f.nullable or f.name == time_column]
        #: Splits that are read in turn, and those whose turn comes when one of these ends.
        self._open_splits: deque[OpenSplit] = deque()
        self._waiting: deque[OpenSplit] = deque()
        self._discovery: Discovery | None = None
        self._next_discovery_us = 0
        self._listed_count = 0
        self._given: _Given | None = None
        self._letters_bytes = 0
        self._turns = 0
        self._input_plan = 0

    def open(self, context: OperatorContext) -> None:
        """Open the user's source, then choose splits; see the base class."""
        self._open_source(context)
        super().open(context)

    def _open_source(self, context: OperatorContext) -> None:
        self._source.open(context)

    def close(self) -> None:
        """Close the user's source."""
        for split in self._open_splits:
            close = getattr(split.iterator, "close", None)
            if close is not None:
                close()
        self._source.close()

    # --- splits ---

    def _open_input(self, context: OperatorContext) -> None:
        self._assigned = [True] * self._subtasks
        if self._spec.discover_ms is not None:
            self._discovery = Discovery(self._rank, self._subtasks)
            self._discover()
            return
        listed = self._list_splits()
        self._input_plan = plan_number([[split_key(split) for split in listed.values()]])
        shares = [list(listed.items())[rank :: self._subtasks] for rank in range(self._subtasks)]
        self._assigned = [bool(share) for share in shares]
        for number, split in shares[self._rank]:
            self._add(OpenSplit(number, split))
        self._fill()

    def _list_splits(self) -> dict[int, Json]:
        splits = self._splits_now()
        keys = [split_key(split) for split in splits]
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise GraphError(
                f"source {self._context.operator_name}: split {twice} is listed twice; list each once"
            )
        return dict(enumerate(splits))

    def _splits_now(self) -> list[Json]:
        splits = self._source.splits()
        if isinstance(splits, str | bytes | Mapping) or not isinstance(splits, Iterable):
            raise GraphError(
                f"source {self._context.operator_name}: splits returned {splits!r:.100}; return a list of the splits, "
                "also of a single one"
            )
        return [own_copy(split) for split in splits]

    def _discover(self) -> None:
        """Take in new splits of this subtask."""
        now_us = self._clock.now_us()
        if self._discovery is None or now_us < self._next_discovery_us:
            return
        assert self._spec.discover_ms is not None
        self._next_discovery_us = now_us + int(self._spec.discover_ms * 1000)
        listed = {split_key(split): split for split in self._list_splits().values()}
        unfinished = {split.key for split in (*self._open_splits, *self._waiting)}
        for key in self._discovery.new(list(listed), unfinished):
            self._add(OpenSplit(self._listed_count, listed[key], time_ms=self._source_times.splits.told_ms))
            self._listed_count += 1
        self._fill()

    def _add(self, split: OpenSplit) -> None:
        """A split is this subtask's: until it is read, it holds the watermark where it is.

        One that is listed later begins where the watermark is then: rows before that are late.
        """
        self._waiting.append(split)
        self._source_times.splits.add(split.key, split.time_ms)

    def _fill(self) -> None:
        most = self._source.open_splits_max
        while self._waiting and (most is None or len(self._open_splits) < most):
            self._open_splits.append(self._waiting.popleft())

    @property
    def input_plan(self) -> int:
        """Return the number that ``SourceReader.input_plan`` describes."""
        return self._input_plan

    def _has_input(self) -> list[bool]:
        return self._assigned

    def _event_quota(self, events_max: int) -> int:
        readers = [rank for rank, has_input in enumerate(self._assigned) if has_input]
        if self._rank not in readers:
            return 0
        return share_evenly(events_max, len(readers))[readers.index(self._rank)]

    # --- rows ---

    def _next_batch(self) -> pa.RecordBatch | None:
        self._discover()
        now_us = self._clock.now_us()
        for split in self._in_turn():
            if split.wake_us <= now_us:
                # The next turn begins behind it.
                self._open_splits.rotate(-1 - self._open_splits.index(split))
                batch = self._pull(split, now_us)
                if batch is not None:
                    return batch
        return None

    def _in_turn(self) -> list[OpenSplit]:
        """Return the splits in the order to ask them: furthest behind by event time first, but each has its turn."""
        in_turn = list(self._open_splits)
        self._turns += 1
        if self._turns % _TURNS_OF_THE_LAST:
            in_turn.sort(key=lambda split: self._source_times.splits.time_ms(split.key))
        return in_turn

    def _nothing_now(self) -> Poll:
        if not self._open_splits and self._discovery is None:
            return Poll(finished=True)
        times_us = [split.wake_us for split in self._open_splits]
        if self._discovery is not None:
            times_us.append(self._next_discovery_us)
        next_us = min(times_us)
        next_us = 0 if next_us <= self._clock.now_us() else next_us
        self._note_idle_splits()
        return self._poll_of(None, 0, next_us)

    def _pull(self, split: OpenSplit, now_us: int) -> pa.RecordBatch | None:
        """Ask a split for rows; None: it has none now, or none of them is good, or it has ended."""
        self._letters_bytes = self._letters_position()
        if split.iterator is None:
            split.iterator = iter(self._source.read(own_copy(split.split), own_copy(split.position)))
        try:
            item = next(split.iterator)
        except StopIteration:
            self._ended(split)
            return None
        return self._take_item(split, item, now_us)

    def _ended(self, split: OpenSplit) -> None:
        self._open_splits.remove(split)
        self._source_times.end(split.key)
        self._fill()

    def _note_nothing(self, split: OpenSplit) -> None:
        if split.empty_since_s is None:
            split.empty_since_s = self._clock.monotonic_s()

    def _take_item(self, split: OpenSplit, item: object, now_us: int) -> pa.RecordBatch | None:
        if item is None:
            split.wait_us = min(max(2 * split.wait_us, _WAIT_US_MIN), _WAIT_US_MAX)
            split.wake_us = now_us + split.wait_us
            self._note_nothing(split)
            return None
        if not isinstance(item, tuple) or len(item) != 2:
            raise GraphError(
                f"source {self._context.operator_name}: read yields (rows, position) or None, not {type(item).__name__}"
            )
        split.wait_us = split.wake_us = 0
        rows, position = item
        return self._take_in(split, rows, own_copy(position))

    def _take_in(
        self,
        split: OpenSplit,
        rows: Rows,
        position: Json,
        ends: Sequence[int] = (),
        positions: Sequence[Json] = (),
    ) -> pa.RecordBatch | None:
        try:
            checked = checked_rows(rows, self._schema_read, self._required)
        except TypeError as error:
            raise GraphError(f"source {self._context.operator_name}: {error}; correct its read") from error
        for number, reason, raw in checked.bad:
            if number >= split.checked:
                self._reject(split, split.rows + number, reason, raw)
        split.checked = max(split.checked, checked.count)
        good = checked.good[np.searchsorted(checked.good, split.skip) :]
        self._given = _Given(split, position, checked.count, good, ends, positions)
        if not len(good):
            self._settle()
            return None
        split.empty_since_s = None
        batch = checked.batch
        return batch.slice(batch.num_rows - len(good)) if len(good) < batch.num_rows else batch

    def _reject(self, split: OpenSplit, number: int, reason: str, raw: bytes) -> None:
        self.rejected += 1
        origin = f"{self._context.operator_name}:{split.key}"
        if self._spec.on_bad_record == "fail":
            raise InputError(
                f"{origin} row {number}: {reason}; correct it, or let the source put bad rows aside with "
                'on_bad_record="dead_letter"'
            )
        if self._context.dead_letters is not None:
            self._context.dead_letters.reject(origin, number, reason, raw)

    def _settle(self) -> None:
        """Everything that was read was given out: go on after it."""
        assert self._given is not None
        split, rows = self._given.split, self._given.rows
        split.position = self._given.position
        split.rows += rows
        split.skip, split.checked = max(0, split.skip - rows), max(0, split.checked - rows)
        self._given = None

    def _take(self, rows: DecodedRows, count: int, next_poll_us: int) -> Poll:
        assert self._given is not None
        self._note_idle_splits()
        polled = super()._take(rows, count, next_poll_us)
        if self._decoded_rows is None:
            self._settle()
        return polled

    def _split_name(self) -> Hashable:
        assert self._given is not None
        return self._given.split.key

    def _place_of_row(self, row: int) -> tuple[str, int, str]:
        assert self._given is not None
        split = self._given.split
        return f"{self._context.operator_name}:{split.key}", split.rows + int(self._given.good[row]), ""

    def _note_idle_splits(self) -> None:
        """Splits that have had nothing for a while do not hold the watermark back."""
        idle_s = self._context.idle_timeout_ms / 1e3
        now_s = self._clock.monotonic_s()
        for split in self._open_splits:
            since_s = split.empty_since_s
            self._source_times.splits.set_idle(split.key, since_s is not None and now_s - since_s >= idle_s)

    # --- snapshots ---

    def _positions(self, context: OperatorContext) -> Mapping[int, SourceCounts]:
        self._restored = {
            index: position_from_json(value, context, self._spec.kind)
            for index, value in context.restored.items()
            if value is not None
        }
        return self._restored

    def _resume(self, same: bool, indices: tuple[int, ...]) -> None:
        positions = self._restored
        if same:
            shares = [list(positions[index].splits) for index in indices]
        else:
            left = [split for position in positions.values() for split in position.splits]
            splits = sorted(left, key=lambda split: (split[0], split_key(split[1])))
            shares = assign([1] * len(splits), splits, self._subtasks)
        self._assigned = [bool(share) or self._spec.discover_ms is not None for share in shares]
        for number, split, position, rows, skip, checked, event_time_ms in shares[self._rank]:
            time_ms = time_from_json(event_time_ms)
            self._add(OpenSplit(number, split, position, rows, skip, checked, time_ms))
        own = [positions[self._context.subtask_index]] if same else positions.values()
        self._source_times.splits.told_ms = min(position.told_ms for position in own)
        self._listed_count = 1 + max((s[0] for p in positions.values() for s in p.splits), default=-1)
        if self._spec.discover_ms is not None:
            self._resume_discovery(same)
        self._fill()

    def _resume_discovery(self, same: bool) -> None:
        known: set[str] = set()
        for position in self._restored.values():
            if position.done is None:
                raise InputError(
                    f"source {self._context.operator_name}: the checkpoint does not say which splits were read, as it "
                    "was made without discover_ms; start without it, or without discover_ms"
                )
            known |= {*position.done, *(split_key(split[1]) for split in position.splits)}
        done = self._restored[self._context.subtask_index].done if same else known if self._rank == 0 else ()
        mine = {*(done or ()), *(split.key for split in self._waiting)}
        self._discovery = Discovery(self._rank, self._subtasks, known, mine)

    def _position(self, counts: SourceCounts) -> Json:
        in_order = sorted((*self._open_splits, *self._waiting), key=lambda split: split.number)
        keys = {split.key for split in in_order}
        if self._given is not None:
            counts = dataclasses.replace(counts, dead_letter_bytes=self._letters_bytes)
        done = None if self._discovery is None else self._discovery.done(keys)
        splits = [self._describe(split) for split in in_order]
        told_ms = self._source_times.splits.told_ms
        return position_to_json(splits, done, told_ms, counts, self._spec.kind, self._context)

    def _describe(self, split: OpenSplit) -> list[Json]:
        position, skip, before = split.position, split.skip, 0
        given = self._given
        if given is not None and given.split is split:
            skip = int(given.good[self._first_left_row])
            parts = bisect_right(given.ends, skip)
            if parts:
                position, before = given.positions[parts - 1], given.ends[parts - 1]
        time_ms = time_to_json(self._source_times.splits.time_ms(split.key))
        checked = max(0, split.checked - before)
        return [split.number, split.split, position, split.rows + before, skip - before, checked, time_ms]
