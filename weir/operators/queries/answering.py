"""Answers to questions, over anything that reads the store keys of a state."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from weir import keys as weir_keys
from weir.graph import LogicalGraph, Node
from weir.operators.queries.formats import EntryFormat, StateFormat, format_of
from weir.operators.queries.key_text import KeyText
from weir.operators.queries.reading import RangeReading, StateReading
from weir.protocol.queries import ARROW_BYTES_MAX, PAGE_BYTES_MAX, QueryError, Question
from weir.specs.keyed import KeyedSpec
from weir.specs.windows import WindowAggregateSpec
from weir.state import layout
from weir.state.api import prefix_end

#: About so many entries are put in order at a time.
BLOCK_ROWS = 10_000
#: Rows of a batch of Arrow, and entries that are counted, between two looks whether a scan may go on.
_BATCH_ROWS, _COUNTED_ROWS = 4_096, 1_024
#: What is read of one key group at a time, at least.
_SHARE_MIN = 16
#: What a row has beside its key and its value, about.
_ROW_BYTES = 64
_PREFIX_BYTES = layout.NO_NAMESPACE_HEADER_BYTES


@dataclass(frozen=True)
class AskedState:
    """A state that is asked, as the job has it."""

    node: Node
    #: What its number is known by.
    job_name: str
    format: StateFormat
    keys: KeyText
    max_parallelism: int

    def group_of(self, user_key: bytes) -> int:
        """The key group of a key."""
        return self.place_of(user_key)[1]

    def place_of(self, user_key: bytes) -> tuple[np.uint64, int]:
        """The hash and the key group of a key."""
        value = weir_keys.hash_key(user_key)
        return value, (int(value) >> 32) * self.max_parallelism >> 32


def asked_state(graph: LogicalGraph, question: Question) -> AskedState:
    """The state that a question is about.

    Raises:
        QueryError: there is none, or it cannot be asked.
    """
    nodes = {node.name: node for node in graph.nodes}
    node = nodes.get(question.step)
    if node is None or not isinstance(node.spec, KeyedSpec):
        keyed = [name for name, each in nodes.items() if isinstance(each.spec, KeyedSpec)]
        raise QueryError(
            404, f"no step {question.step!r} has state; those with state: {', '.join(keyed) or 'none'}"
        )
    given = node.inputs[0]
    schema: pa.Schema = nodes[given.producer].schema_of(given.output)
    if isinstance(node.spec, WindowAggregateSpec):
        # What comes in may be added up already.
        schema = node.spec.input_schema
    job_name, state_format = format_of(node, schema, question.state)
    keys = KeyText([schema.field(column) for column in node.spec.key_columns])
    return AskedState(node, job_name, state_format, keys, graph.max_parallelism)


def answer_one(
    asked: AskedState, reading: StateReading, state_id: int, group: int, question: Question
) -> Any:
    """What an answer shows of one key; ``ABSENT`` if there is nothing.

    Raises:
        QueryError: the question does not fit the state.
    """
    assert question.key is not None
    return asked.format.one(reading, group, state_id, asked.keys.encode(question.key), question)


def check_range(asked: AskedState, question: Question) -> None:
    """Refuse ranges over keys that the state does not have.

    Raises:
        QueryError: it does not.
    """
    if not isinstance(asked.format, EntryFormat):
        raise QueryError(
            501, "ranges over keys are for aggregates and states of one value; ask for one key here"
        )
    if question.as_of_ms is not None:
        raise QueryError(400, "as_of is for versioned states")


@dataclass(frozen=True)
class Page:
    """Some keys of a range, in the order of the answer, as the store has them."""

    asked: AskedState
    keys: list[bytes]
    values: list[bytes]
    #: The last key, if there may be more after it.
    after: bytes | None = None
    #: How many keys there are, if that was asked.
    count: int | None = None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """As JSON."""
        assert isinstance(self.asked.format, EntryFormat)
        keys = self.asked.keys.decode(self.keys)
        values = self.asked.format.plain_values(self.values)
        return [{"key": key, "value": value} for key, value in zip(keys, values, strict=True)]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """As Arrow, at least one: columns ``key`` (of several key columns a struct) and ``value``.

        A few thousand rows each, since some steps hold the GIL for all rows of a batch, for which subtasks wait; but
        all at once if the type of values shows from all of them only.
        """
        assert isinstance(self.asked.format, EntryFormat)
        rows = _BATCH_ROWS if self.asked.format.has_arrow_type else len(self.keys)
        for start in range(0, len(self.keys), rows) if self.keys else (0,):
            keys, values = self.keys[start : start + rows], self.values[start : start + rows]
            columns = [self.asked.keys.column(keys), self.asked.format.arrow_values(values)]
            yield pa.RecordBatch.from_arrays(columns, names=["key", "value"])


def answer_range(
    asked: AskedState,
    reading: RangeReading,
    state_id: int,
    groups: Iterable[int],
    question: Question,
    check: Callable[[], None],
) -> Page:
    """A page of a range over all keys, in the order of their bytes.

    Args:
        asked: the state.
        reading: it.
        state_id: its number in the store.
        groups: all key groups.
        question: without a key.
        check: called after a few hundred rows each; may wait, and raises what ends the question.

    Raises:
        QueryError: the question does not fit the state.
    """
    check_range(asked, question)
    assert isinstance(asked.format, EntryFormat)
    if question.counts:
        return Page(asked, [], [], count=_count(asked, reading, state_id, groups, question, check))
    bytes_max = (ARROW_BYTES_MAX if question.arrow else PAGE_BYTES_MAX) // question.shares
    keys: list[bytes] = []
    values: list[bytes] = []
    size_bytes = 0
    after: bytes | None = None
    for block in merged_blocks(
        reading, state_id, groups, _bounds(asked, question), question.limit, check, reverse=question.reverse
    ):
        check()
        live = asked.format.live(reading, block)
        if not live:
            continue
        room = question.limit - len(keys)
        if room <= 0 or size_bytes >= bytes_max:
            after = keys[-1]
            break
        taken = 0
        for key, data in live[:room]:
            taken += 1
            size_bytes += len(key) + len(data) + _ROW_BYTES
            if size_bytes >= bytes_max:
                break
        check()
        keys += [key for key, _ in live[:taken]]
        values += [data for _, data in live[:taken]]
        if taken < len(live):
            after = keys[-1]
            break
    return Page(asked, keys, values, after)


def _count(
    asked: AskedState,
    reading: RangeReading,
    state_id: int,
    groups: Iterable[int],
    question: Question,
    check: Callable[[], None],
) -> int:
    """How many keys a range has: group by group, since a number needs no order."""
    assert isinstance(asked.format, EntryFormat)
    count = 0
    for entries in _scans(reading, state_id, groups, *_bounds(asked, question), reverse=False):
        while block := list(islice(entries, _COUNTED_ROWS)):
            check()
            count += len(asked.format.live(reading, block))
    return count


def _bounds(asked: AskedState, question: Question) -> tuple[bytes, bytes | None]:
    """``start <= key < stop`` of user keys."""
    start, stop = b"", None
    if question.prefix is not None:
        if not asked.keys.is_text:
            raise QueryError(400, "prefix is for keys of one column of text; give from and to")
        start = question.prefix.encode()
        stop = prefix_end(start)
    if question.first is not None:
        start = asked.keys.encode(question.first)
    if question.last is not None:
        stop = asked.keys.encode(question.last) + b"\0"
    if question.after:
        after = bytes.fromhex(question.after)
        if question.reverse:
            stop = after
        else:
            start = after + b"\0"
    return start, stop


def merged_blocks(
    reading: RangeReading,
    state_id: int,
    groups: Iterable[int],
    bounds: tuple[bytes, bytes | None],
    rows: int,
    check: Callable[[], None],
    *,
    reverse: bool,
) -> Iterator[list[tuple[bytes, bytes]]]:
    """User keys and values of all groups, in order, many at a time: one at a time would take ten times as long.

    Args:
        reading: the state.
        state_id: its number in the store.
        groups: key groups.
        bounds: of user keys.
        rows: about so many are wanted.
        check: see :func:`answer_range`.
        reverse: from the last key to the first.
    """
    runs = [_Run(entries) for entries in _scans(reading, state_id, groups, *bounds, reverse=reverse)]
    share = min(rows, BLOCK_ROWS) // max(len(runs), 1) + _SHARE_MIN
    while runs:
        for run in runs:
            run.fill(share)
            check()
        # What is before the last key that was read of each group is all there is before it.
        lasts = [run.entries[-1][0] for run in runs if not run.is_over]
        if not lasts:
            block = [entry for run in runs for entry in run.entries]
            runs = []
        else:
            bound = max(lasts) if reverse else min(lasts)
            block = [entry for run in runs for entry in run.take(bound, reverse=reverse)]
            runs = [run for run in runs if run.entries or not run.is_over]
        # Runs are sorted already, which the sort makes use of.
        block.sort(key=itemgetter(0), reverse=reverse)
        if block:
            yield block


class _Run:
    """The entries of one key group, in order."""

    def __init__(self, entries: Iterator[tuple[bytes, bytes]]) -> None:
        self._source = entries
        self.entries: list[tuple[bytes, bytes]] = []
        self.is_over = False

    def fill(self, count: int) -> None:
        """Read on, so that there are at least as many; fewer: there are no more."""
        missing = count - len(self.entries)
        if missing > 0 and not self.is_over:
            more = [(key[_PREFIX_BYTES:], data) for key, data in islice(self._source, missing)]
            self.is_over = len(more) < missing
            self.entries += more

    def take(self, bound: bytes, *, reverse: bool) -> list[tuple[bytes, bytes]]:
        """Entries up to this key, which go."""
        if reverse:
            count = bisect_left(self.entries, True, key=lambda entry: entry[0] < bound)
        else:
            count = bisect_right(self.entries, bound, key=itemgetter(0))
        taken, self.entries = self.entries[:count], self.entries[count:]
        return taken


def _scans(
    reading: RangeReading,
    state_id: int,
    groups: Iterable[int],
    start: bytes,
    stop: bytes | None,
    *,
    reverse: bool,
) -> Iterator[Iterator[tuple[bytes, bytes]]]:
    for group in groups:
        prefix = layout.key_prefix(group, state_id)
        last = prefix_end(prefix) if stop is None else prefix + stop
        assert last is not None, "it begins with a key group, which is not only 0xFF"
        if prefix + start < last:
            yield reading.scan(prefix + start, last, reverse=reverse)
