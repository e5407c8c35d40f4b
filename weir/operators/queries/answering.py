"""Answers to questions, over anything that reads the store keys of a state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa

from weir.keys import hashing as weir_keys
from weir.operators.queries.dicts import DICT_KEY, DictFormat
from weir.operators.queries.formats import format_of
from weir.operators.queries.key_range import Check, KeyRange
from weir.operators.queries.key_text import KeyText
from weir.operators.queries.merging import BLOCK_ROWS, Entries, merged_runs
from weir.operators.queries.reading import RangeReading, StateReading
from weir.operators.queries.state_format import StateFormat
from weir.plan.graph import LogicalGraph, Node
from weir.protocol.queries import ARROW_BYTES_MAX, PAGE_BYTES_MAX, Question
from weir.questions.askable import askable, refused_step
from weir.specs.windows import WindowAggregateSpec
from weir.state.api import prefix_end

#: Rows of a batch of Arrow, and entries that are counted, between two looks whether a scan may go on.
_BATCH_ROWS, _COUNTED_ROWS = 4_096, 1_024
#: Key groups that are counted at a time.
_COUNTED_GROUPS = 16
#: Entries of each run that are read at first for a page of few keys.
_FIRST_ENTRIES = 3
#: Runs of keys that are read side by side, in all key groups.
_RUNS_MAX = 4_096
#: There are no more runs.
_END: Any = object()
#: What a row has beside its key and its value, about.
_ROW_BYTES = 64


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
        if self.format.only_group is not None:
            return value, self.format.only_group
        return value, (int(value) >> 32) * self.max_parallelism >> 32


def asked_state(
    graph: LogicalGraph, question: Question, steps: Mapping[str, Node] | None = None
) -> AskedState:
    """The state that a question is about.

    Args:
        graph: the job as its author wrote it.
        question: what is asked.
        steps: as they run: they may keep fewer columns of their rows than the author's have.

    Raises:
        QueryError: there is none, or it cannot be asked.
    """
    nodes = {node.name: node for node in graph.nodes}
    node = nodes.get(question.step)
    if node is None or not node.key_columns:
        raise refused_step(question.step, askable(graph))
    given = node.inputs[0]
    schema: pa.Schema = nodes[given.producer].schema_of(given.output)
    if isinstance(node.spec, WindowAggregateSpec):
        # What comes in may be added up already.
        schema = node.spec.input_schema
    job_name, state_format = format_of((steps or nodes)[node.name], schema, question.state)
    columns = [schema.field(column) for column in node.key_columns[0]]
    keys = KeyText([DICT_KEY] if isinstance(state_format, DictFormat) else columns)
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


def read_one(asked: AskedState, reading: StateReading, state_id: int, group: int, question: Question) -> Any:
    """What the state's format shows of one key, in two steps: this one in the thread for which rows wait.

    Raises:
        QueryError: the question does not fit the state.
    """
    assert question.key is not None
    return asked.format.read(reading, group, state_id, asked.keys.encode(question.key), question)


def check_range(asked: AskedState, question: Question) -> None:
    """Refuse ranges over keys that do not fit the state.

    Raises:
        QueryError: they do not.
    """
    asked.format.check_range(question)
    _bounds(asked, question)


@dataclass(frozen=True)
class Page:
    """Some keys of a range, in the order of the answer, as the store has them."""

    asked: AskedState
    keys: list[bytes]
    values: list[Any]
    #: The last key, if there may be more after it.
    after: bytes | None = None
    #: How many keys there are, if that was asked.
    count: int | None = None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return the page as JSON."""
        keys = self.asked.keys.decode(self.keys)
        values = self.asked.format.plain_values(self.values)
        return [{"key": key, "value": value} for key, value in zip(keys, values, strict=True)]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the page as Arrow, at least one batch: columns ``key`` (of several key columns a struct) and ``value``.

        A few thousand rows each, since some steps hold the GIL for all rows of a batch, for which subtasks wait; but
        all at once if the type of values shows from all of them only.
        """
        rows = _BATCH_ROWS if self.asked.format.has_arrow_type else len(self.keys)
        for start in range(0, len(self.keys), rows) if self.keys else (0,):
            keys, values = self.keys[start : start + rows], self.values[start : start + rows]
            columns = [self.asked.keys.column(keys), self.asked.format.arrow_values(values)]
            yield pa.RecordBatch.from_arrays(columns, names=["key", "value"])


def answer_range(
    asked: AskedState,
    reading: RangeReading,
    state_id: int,
    groups: Sequence[int],
    question: Question,
    check: Check,
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
    if question.counts:
        # A number needs no order.
        ranges = _key_ranges(asked, state_id, groups, replace(question, reverse=False), check)
        return Page(asked, [], [], count=_count(asked, reading, ranges))
    bytes_max = (ARROW_BYTES_MAX if question.arrow else PAGE_BYTES_MAX) // question.shares
    keys: list[bytes] = []
    values: list[Any] = []
    size_bytes, size_of = 0, asked.format.size_bytes
    after: bytes | None = None
    ranges = _key_ranges(asked, state_id, groups, question, check)
    blocks = _merged_blocks(asked.format, reading, ranges, question, check)
    for block in _within(asked, question, blocks):
        check()
        live = asked.format.live(reading, block, question)
        for key, value in live:
            if len(keys) >= question.limit or size_bytes >= bytes_max:
                after = keys[-1]
                break
            keys.append(key)
            values.append(value)
            size_bytes += len(key) + size_of(value) + _ROW_BYTES
        check()
        if after is not None:
            break
    return Page(asked, keys, values, after)


def _count(asked: AskedState, reading: RangeReading, ranges: Iterable[KeyRange]) -> int:
    """How many keys there are, key group by key group."""
    count, state_format = 0, asked.format
    for keys, runs in _begun(state_format, reading, ranges):
        check = keys.check
        blocks = _blocks(runs[0]) if len(runs) == 1 else merged_runs(runs, BLOCK_ROWS, check, reverse=False)
        for block in _within(asked, keys.question, blocks, state_format.cut_bytes):
            check()
            live = state_format.live(reading, block, keys.question)
            count += len(live) if isinstance(live, list) else sum(1 for _ in live)
    return count


def _begun(
    state_format: StateFormat, reading: RangeReading, ranges: Iterable[KeyRange]
) -> Iterator[tuple[KeyRange, list[Entries]]]:
    """Ranges and their runs, some at a time, so that what is read of these begins together."""
    left = iter(ranges)
    while some := list(islice(left, _COUNTED_GROUPS)):
        yield from zip(some, _in_turn([state_format.runs(reading, keys) for keys in some]), strict=True)


def _blocks(entries: Entries) -> Iterator[list[tuple[bytes, Any]]]:
    block: list[tuple[bytes, Any]] = []
    # What a key has is whole when the next one is there.
    while more := list(islice(entries, _COUNTED_ROWS)):
        block += more
        if len(block) > 1:
            yield block[:-1]
        block = block[-1:]
    if block:
        yield block


def _within(
    asked: AskedState, question: Question, blocks: Iterable[list[tuple[bytes, Any]]], cut_bytes: int = 0
) -> Iterator[list[tuple[bytes, Any]]]:
    """Blocks less the key that is null if there are bounds: its byte may lie between them, and null does not.

    ``cut_bytes``: what comes before user keys.
    """
    if not (question.is_bounded and asked.keys.has_null):
        yield from blocks
        return
    for block in blocks:
        yield [entry for entry in block if entry[0][cut_bytes:] != weir_keys.NULL_KEY]


def _key_ranges(
    asked: AskedState, state_id: int, groups: Sequence[int], question: Question, check: Check
) -> Iterator[KeyRange]:
    """What each key group is asked."""
    bounds, runs_max = _bounds(asked, question), max(_RUNS_MAX // max(len(groups), 1), 2)
    # Of a page of fewer keys than groups few have two, and each reads the first one beyond it.
    first = _FIRST_ENTRIES if question.limit < len(groups) and not question.counts else 0
    return (KeyRange(group, state_id, bounds, question, check, runs_max, first) for group in groups)


def _bounds(asked: AskedState, question: Question) -> tuple[bytes, bytes | None]:
    """``start <= key < stop`` of user keys."""
    start, stop = asked.keys.bounds(question.first, question.last)
    if question.prefix is not None:
        start = asked.keys.prefix(question.prefix)
        stop = prefix_end(start)
    if question.after:
        after = bytes.fromhex(question.after)
        if question.reverse:
            stop = after
        else:
            start = after + b"\0"
    return start, stop


def _merged_blocks(
    state_format: StateFormat,
    reading: RangeReading,
    ranges: Iterable[KeyRange],
    question: Question,
    check: Check,
) -> Iterator[list[tuple[bytes, Any]]]:
    """Keys within ranges and what they have, of all groups and in order, many at a time."""
    runs = chain.from_iterable(_in_turn([state_format.runs(reading, keys) for keys in ranges]))
    # One more tells whether there is another page.
    rows = min(question.limit + 1, state_format.block_rows)
    yield from merged_runs(runs, rows, check, reverse=question.reverse, cut_bytes=state_format.cut_bytes)


def _in_turn(groups: Sequence[Iterator[Entries | None]]) -> list[list[Entries]]:
    """The runs of each group, each brought one step further at a time: so all groups begin to read what they need.

    A store that is elsewhere then reads for all of them in one go.
    """
    found: list[list[Entries]] = [[] for _ in groups]
    left = list(zip(groups, found, strict=True))
    while left:
        going = []
        for runs, own in left:
            run = next(runs, _END)
            if run is not _END:
                going.append((runs, own))
                if run is not None:
                    own.append(run)
        left = going
    return found
