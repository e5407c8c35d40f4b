"""Splits of a user's source while a subtask reads them, and how a snapshot holds them.

The snapshot of one subtask::

    {"kind": "user_source", "version": 1,
     "splits": [[3, SPLIT, POSITION, 40, 7, 9, 1700000000000]],   number, split, position, rows before it, rows behind
                                  it that were given out, rows after it that were checked, how far it has come by event
                                  time, or by watermarks of its own, or null
     "told_ms": 1700000000000,       how far the subtask has come, or null
     "done": ["7"],               with ``discover_ms``: splits that were read to their end, as JSON; else null
     "emitted": 40, ...}          as in ``weir.operators.sources.files.positions``
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from weir.author.operator import Json, OperatorContext
from weir.author.source import Rows
from weir.errors import GraphError, InputError
from weir.operators.sources.files.positions import (
    SourceCounts,
    counts_from_json,
    counts_to_json,
    time_from_json,
    time_to_json,
)
from weir.operators.sources.paced.source_thread import SplitAhead
from weir.rows.records import WATERMARK_MIN_MS

VERSION = 1


@dataclass(eq=False)
class OpenSplit:
    """A split that is a subtask's and has not ended."""

    number: int
    split: Json
    position: Json = None
    #: Rows before the position.
    rows: int = 0
    #: Rows after the position that were given out before a restart, and that were checked.
    skip: int = 0
    checked: int = 0
    #: How far it was by event time when it became the subtask's.
    time_ms: int = WATERMARK_MIN_MS
    iterator: Iterator[tuple[Rows, Json] | None] | None = None
    #: Where a thread of its own reads it.
    ahead: SplitAhead | None = None
    wait_us: int = 0
    wake_us: int = 0
    #: Since when it has had nothing, on the monotonic clock; None: it has.
    empty_since_s: float | None = None

    @cached_property
    def key(self) -> str:
        """The same text for the same split, in every process."""
        return split_key(self.split)


@dataclass(frozen=True, kw_only=True)
class UserPosition(SourceCounts):
    """Where one subtask is in its splits."""

    #: As in the snapshot.
    splits: tuple[Any, ...]
    done: tuple[str, ...] | None
    told_ms: int


def split_key(split: Json) -> str:
    """The same text for the same split, in every process.

    Raises:
        GraphError: it is not JSON.
    """
    try:
        return json.dumps(split, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise GraphError(f"a split of a source must be a JSON value: {error}") from error


def position_to_json(
    splits: Sequence[Json],
    done: Sequence[str] | None,
    told_ms: int,
    counts: SourceCounts,
    kind: str,
    context: OperatorContext,
) -> Json:
    """The snapshot of a subtask.

    Raises:
        InputError: a split or a position is not JSON.
    """
    value = {
        "kind": kind,
        "version": VERSION,
        "splits": splits,
        "done": done,
        "told_ms": time_to_json(told_ms),
        **counts_to_json(counts),
    }
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"source {context.operator_name}: splits and positions must be JSON values: {error}"
        ) from error


def position_from_json(value: Json, context: OperatorContext, kind: str) -> UserPosition:
    """Read what :func:`position_to_json` made, for a source of this kind.

    Raises:
        InputError: it is another source's, or damaged.
    """
    step = f"source {context.operator_name}"
    try:
        if value["kind"] != kind or value["version"] != VERSION:
            raise InputError(
                f"{step}: the checkpoint holds the position of a {value['kind']} of version {value['version']}, this "
                f"is a {kind} of version {VERSION}; give the source another name, or start without it"
            )
        done = value["done"]
        return UserPosition(
            splits=tuple(value["splits"]),
            done=None if done is None else tuple(done),
            told_ms=time_from_json(value.get("told_ms")),
            **vars(counts_from_json(value)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{step}: the checkpoint holds a position that cannot be read ({type(error).__name__}: {error}); "
            "start from another one"
        ) from error
