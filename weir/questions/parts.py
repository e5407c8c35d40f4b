"""Parts of one answer, each of a task manager, become one page in the order of keys. docs/design/0005."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from weir.protocol.queries import Question, continuation
from weir.questions.json_values import alike


@dataclass(frozen=True)
class Part:
    """What a task manager has answered to a question for many keys, of the key groups that it owns."""

    task_manager: str
    #: ``groups``: its key groups; ``parts``: of which position; ``count``, or ``keys`` (hexadecimal, ascending; if
    #: reverse, descending), ``rows`` unless they are in Arrow, ``order``, and ``after``: there may be more after it.
    answer: dict[str, Any]
    arrow: bytes = b""


def lacking_groups(parts: Sequence[Part], groups: int) -> list[int]:
    """Key groups that not exactly one of the parts has, ascending; none: the parts make a whole."""
    times = [0] * groups
    for part in parts:
        for group in part.answer["groups"]:
            times[group] += 1
    return [group for group, count in enumerate(times) if count != 1]


def count_parts(parts: Sequence[Part], question: Question) -> dict[str, Any]:
    """The answer of a question for the number of keys."""
    return {"count": sum(part.answer["count"] for part in parts), "parts": _positions(parts)}


def merge_parts(parts: Sequence[Part], question: Question) -> dict[str, Any]:
    """The answer of a question for a page."""
    places, after = merged_places(
        [part.answer["keys"] for part in parts],
        [part.answer["after"] for part in parts],
        question.limit,
        reverse=question.reverse,
    )
    rows = (
        _arrow_rows(parts, places)
        if question.arrow
        else [parts[part].answer["rows"][index] for part, index in places]
    )
    return {
        "rows": rows,
        "order": parts[0].answer["order"],
        "continuation": None if after is None else continuation(None, after),
        "parts": _positions(parts),
    }


def merged_places(
    keys: Sequence[Sequence[str]], afters: Sequence[str | None], limit: int, *, reverse: bool
) -> tuple[list[tuple[int, int]], str | None]:
    """Which rows make the page, as part and index, and the key after which it goes on.

    Args:
        keys: of each part, in the order of the answer; hexadecimal, which is in the same order as their bytes.
        afters: of each part: there may be more after this key.
        limit: of rows.
        reverse: from the last key to the first.
    """
    bounds = [after for after in afters if after is not None]
    bound = None if not bounds else max(bounds) if reverse else min(bounds)
    found = [
        (key, part, index)
        for part, listed in enumerate(keys)
        for index, key in enumerate(listed)
        # Of what is beyond the end of some part, that part's keys are not known.
        if bound is None or (key >= bound if reverse else key <= bound)
    ]
    found.sort(reverse=reverse)
    taken = found[:limit]
    is_over = bound is None and len(taken) == len(found)
    return [(part, index) for _, part, index in taken], None if is_over else taken[-1][0]


def _positions(parts: Sequence[Part]) -> list[dict[str, Any]]:
    return [
        {"task_manager": part.task_manager, **position} for part in parts for position in part.answer["parts"]
    ]


def _arrow_rows(parts: Sequence[Part], places: Sequence[tuple[int, int]]) -> bytes:
    tables = [pa.ipc.open_stream(part.arrow).read_all() for part in parts]
    starts = [0]
    for table in tables:
        starts.append(starts[-1] + table.num_rows)
    columns = [alike([table.column(name) for table in tables]) for name in ("key", "value")]
    chosen = pa.array([starts[part] + index for part, index in places], pa.int64())
    merged = pa.table({"key": columns[0].take(chosen), "value": columns[1].take(chosen)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, merged.schema) as writer:
        writer.write_table(merged)
    return bytes(sink.getvalue())
