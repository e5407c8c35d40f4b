"""Answers to questions, over anything that reads the store keys of a state."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from weir import keys as weir_keys
from weir.graph import LogicalGraph, Node
from weir.operators.queries.formats import ABSENT, EntryFormat, StateFormat, format_of
from weir.operators.queries.key_text import KeyText
from weir.operators.queries.reading import StateReading
from weir.protocol.queries import PAGE_BYTES_MAX, QueryError, Question
from weir.specs.keyed import KeyedSpec
from weir.specs.windows import WindowAggregateSpec
from weir.state import layout
from weir.state.api import prefix_end

#: After so many entries a scan looks whether it may go on.
_LOOK_ENTRIES = 500


@dataclass(frozen=True)
class AskedState:
    """A state that is asked, as the job has it."""

    node: Node
    #: What its number is known by.
    job_name: str
    format: StateFormat
    keys: KeyText
    max_parallelism: int

    @property
    def is_entry(self) -> bool:
        """Whether a key has one entry, which means something by itself."""
        return isinstance(self.format, EntryFormat) and self.format.ttl is None

    def group_of(self, user_key: bytes) -> int:
        """The key group of a key."""
        return self.place_of(user_key)[1]

    def place_of(self, user_key: bytes) -> tuple[np.uint64, int]:
        """The hash and the key group of a key."""
        value = weir_keys.hash_keys(weir_keys.KeyColumn.from_list([user_key]))[0]
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


@dataclass(frozen=True)
class Page:
    """Some keys of a range."""

    rows: list[dict[str, Any]]
    #: The last key, if there may be more after it.
    after: bytes | None
    #: How many keys there are, if that was asked.
    count: int | None = None


def answer_range(
    asked: AskedState,
    reading: StateReading,
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
        check: called now and then; raises what ends the question.

    Raises:
        QueryError: the question does not fit the state.
    """
    if not asked.format.has_ranges:
        raise QueryError(
            501, "ranges over keys are for aggregates and states of one value; ask for one key here"
        )
    if question.as_of_ms is not None:
        raise QueryError(400, "as_of is for versioned states")
    entries = _merged(reading, state_id, groups, *_bounds(asked, question), reverse=question.reverse)
    found: list[tuple[bytes, Any]] = []
    size_bytes = count = 0
    after: bytes | None = None
    for number, (user_key, data) in enumerate(entries):
        if number % _LOOK_ENTRIES == 0:
            check()
        value = asked.format.value(reading, data)
        if value is ABSENT:
            continue
        count += 1
        if question.counts:
            continue
        if len(found) >= question.limit or size_bytes >= PAGE_BYTES_MAX:
            after = found[-1][0]
            break
        found.append((user_key, value))
        size_bytes += len(user_key) + len(data) + 64
    names = asked.keys.decode([key for key, _ in found])
    rows = [{"key": name, "value": value} for name, (_, value) in zip(names, found, strict=True)]
    return Page(rows, after, count if question.counts else None)


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


def _merged(
    reading: StateReading,
    state_id: int,
    groups: Iterable[int],
    start: bytes,
    stop: bytes | None,
    *,
    reverse: bool,
) -> Iterator[tuple[bytes, bytes]]:
    """User keys and values of all groups, in order."""

    def of_group(group: int) -> Iterator[tuple[bytes, bytes]]:
        prefix = layout.key_prefix(group, state_id)
        last = prefix_end(prefix) if stop is None else prefix + stop
        assert last is not None, "it begins with a key group, which is not only 0xFF"
        if prefix + start < last:
            for key, data in reading.scan(prefix + start, last, reverse=reverse):
                yield key[len(prefix) :], data

    return heapq.merge(*(of_group(group) for group in groups), key=lambda item: item[0], reverse=reverse)
