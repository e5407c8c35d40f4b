"""Rows that joins keep until they can match no more, by side: from entries of keys, and from blocks of recent rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from typing_extensions import override

from weir.operators.joins import join_kernels as kernels
from weir.operators.joins.held_blocks import decoded_blocks, side_of_block
from weir.operators.joins.joined_rows import JoinedRows
from weir.operators.joins.kept_rows import layout_of
from weir.operators.joins.row_chunks import rows_of_entry
from weir.operators.queries.element_runs import LENGTH_BYTES, element_runs
from weir.operators.queries.key_range import KeyBounds, KeyRange
from weir.operators.queries.merging import Entries
from weir.operators.queries.reading import RangeReading, StateReading
from weir.operators.queries.state_format import (
    ABSENT,
    KEY_ELEMENTS_MAX,
    AskedStep,
    Cut,
    StateFormat,
    below_key,
)
from weir.plan.graph import Node
from weir.protocol.queries import QueryError, Question
from weir.questions.json_values import plain
from weir.rows.python_values import row_dicts
from weir.specs.joins import RECENT_STATE, SIDES, JoinSpec
from weir.state import layout
from weir.state.api import prefix_end

#: Rows of a key group that are held in memory as a rule: so many are read at most for a range, and for one key.
RECENT_ROWS_MAX = 500_000


class _Row(NamedTuple):
    """A row of a key, as it is kept."""

    side: int
    time_ms: int
    #: Whether it says that there is none from this time on.
    is_deletion: bool
    #: Its columns, in the form of the side's codec.
    columns: bytes


def join_format(asked: AskedStep[JoinSpec]) -> tuple[str, StateFormat]:
    """Rows of both sides; see ``OperatorSpec.asked_by``."""
    return asked.node.states[asked.state], JoinFormat(asked.spec, asked.node)


class JoinFormat(StateFormat):
    """``{"left": [{"time": ms, "value": {columns}}], "right": [...]}``: what each side has, in the order of times."""

    is_copied = moves_entries = True

    def __init__(self, spec: JoinSpec, node: Node) -> None:
        """``spec``: of ``node`` as it runs, which may keep fewer columns than its author gave it."""
        self._joined = JoinedRows(spec, node.schema)
        self._layout = layout_of(spec)
        self._is_as_of, self._is_of_changes = spec.has_versions, spec.tells_changes
        count = spec.inputs_count
        self._sides = list(SIDES) if count == len(SIDES) else [str(number + 1) for number in range(count)]
        self._recent = node.states.get(RECENT_STATE)
        self.others = () if self._recent is None else (self._recent,)

    # --- one key ---

    @override
    def read(
        self, reading: StateReading, group: int, state_id: int, user_key: bytes, question: Question
    ) -> Any:
        if question.is_bounded or question.as_of_ms is not None:
            raise QueryError(
                400, "rows of a join are answered whole, up to limit: from, to, prefix are for others"
            )
        self.check_range(question)
        owner = layout.key_prefix(group, state_id) + len(user_key).to_bytes(LENGTH_BYTES, "big") + user_key
        entries = [(key[len(owner) :], data) for key, data in reading.scan(owner, owner + b"\xff")]
        watermark_ms = reading.watermark_of(group)
        rows = self._of_entries(entries, watermark_ms)
        if self._recent is not None:
            bounds = user_key, user_key + b"\0"
            rows += self._recent_rows(reading, group, bounds, self._blocks(reading, group)).get(user_key, [])
        return self._told(rows, question)

    @override
    def shown(self, found: Any, question: Question) -> Any:
        if isinstance(found, Cut):
            return Cut(self.shown(found.value, question))
        if found is ABSENT:
            return ABSENT
        return plain({side: rows[::-1] if question.reverse else rows for side, rows in found.items()})

    # --- ranges of keys ---

    def runs(self, reading: RangeReading, keys: KeyRange) -> Iterator[Entries | None]:
        """Yield the runs of entries, one for each length of keys, and one run of all recent rows."""
        watermark_ms = reading.watermark_of(keys.group)
        for run in element_runs(reading, keys):
            # What a key has is read later, see element_runs.
            yield run and ((key, (entries, watermark_ms)) for key, entries in run)
        if self._recent is not None:
            blocks = self._blocks(reading, keys.group)
            yield None
            found = self._recent_rows(reading, keys.group, keys.bounds, blocks)
            recent = sorted(found.items(), key=itemgetter(0), reverse=keys.reverse)
            yield ((key, (rows, None)) for key, rows in recent)

    @override
    def live(
        self, reading: RangeReading, block: list[tuple[bytes, Any]], question: Question
    ) -> Iterable[tuple[bytes, Any]]:
        of_key = below_key(question)
        for key, found in groupby(block, key=itemgetter(0)):
            rows: list[_Row] = []
            for _, (entries, watermark_ms) in found:
                rows += entries if watermark_ms is None else self._of_entries(entries, watermark_ms)
            value = self._told(rows, of_key)
            if value is not ABSENT:
                yield key, value

    @property
    @override
    def has_arrow_type(self) -> bool:
        return True

    @override
    def arrow_values(self, values: Sequence[Any]) -> pa.Array:
        sides = []
        for side, columns, types in zip(self._sides, self._joined.columns, self._joined.types, strict=True):
            value = pa.struct([(name, dtype) for (name, _), dtype in zip(columns, types, strict=True)])
            sides.append((side, pa.list_(pa.struct([("time", pa.int64()), ("value", value)]))))
        return pa.array(values, pa.struct(sides))

    # --- rows ---

    def _of_entries(self, entries: Sequence[tuple[bytes, bytes]], watermark_ms: int) -> list[_Row]:
        """The rows of a key that has entries of its own: one has the latest rows, others are chunks."""
        by_key = dict(entries)
        entry = by_key.pop(b"\x00", None)
        if entry is None:
            return []
        try:
            data = rows_of_entry(
                entry, {int.from_bytes(key[1:], "big"): value for key, value in by_key.items()}
            )
        except KeyError:
            raise QueryError(
                503, "rows of a join were put elsewhere while they were read: try again"
            ) from None
        rows, at = [], 0
        while at < len(data):
            stop = at + int.from_bytes(data[at : at + kernels.FLAGS_AT], "little")
            flags = data[at + kernels.FLAGS_AT]
            side, is_marked = (flags & kernels.SIDE) | (flags >> 3 << 1), bool(flags & kernels.MATCHED)
            until_at = int(self._layout[side, 1])
            can_match = until_at < 0 or _time_at(data, at + until_at) >= watermark_ms
            # Of changes the mark is of a row that was taken away before it came.
            if can_match and not flags & kernels.GONE and not (self._is_of_changes and is_marked):
                columns = data[at + int(self._layout[side, 2]) : stop]
                # Versions that were late are of the right side, too.
                side = side & 1 if self._is_as_of else side
                is_deletion = self._is_as_of and side == 1 and is_marked
                rows.append(_Row(side, _time_at(data, at + kernels.TIME_AT), is_deletion, columns))
            at = stop
        return rows

    def _blocks(self, reading: RangeReading, group: int) -> Iterator[tuple[bytes, bytes]]:
        """The entries of recent rows of a key group."""
        assert self._recent is not None, "the join has recent rows"
        prefix = layout.key_prefix(group, reading.number_of(self._recent))
        last = prefix_end(prefix)
        assert last is not None, "it begins with a key group, which is not only 0xFF"
        return reading.scan(prefix, last)

    def _recent_rows(
        self,
        reading: RangeReading,
        group: int,
        bounds: KeyBounds,
        blocks: Iterator[tuple[bytes, bytes]],
    ) -> dict[bytes, list[_Row]]:
        """Return by key the rows of a key group that lie in blocks."""
        start, stop = bounds
        found: dict[bytes, list[_Row]] = {}
        count, watermark_ms = 0, reading.watermark_of(group)
        for key, value in blocks:
            reading.check()
            rows, side = decoded_blocks([value])[0], side_of_block(key)
            count += len(rows)
            if count > RECENT_ROWS_MAX:
                raise QueryError(
                    413, f"a key group of the join has more than {RECENT_ROWS_MAX:,} rows in memory"
                )
            data, offsets = rows.data.tobytes(), rows.offsets.tolist()
            times, until = rows.times.tolist(), rows.until.tolist()
            for number, user_key in enumerate(rows.keys.to_list()):
                is_within = user_key >= start and (stop is None or user_key < stop)
                if is_within and until[number] >= watermark_ms:
                    columns = data[offsets[number] : offsets[number + 1]]
                    found.setdefault(user_key, []).append(_Row(side, times[number], False, columns))
        return found

    def _told(self, rows: Sequence[_Row], question: Question) -> Any:
        if not rows:
            return ABSENT
        limit = KEY_ELEMENTS_MAX if question.cuts else min(question.limit, KEY_ELEMENTS_MAX)
        if len(rows) > limit:
            raise QueryError(
                413, f"the join keeps {len(rows):,} rows of a key, at most {limit:,} are read: give limit"
            )
        if question.cuts and len(rows) > question.limit:
            # By time over all sides; of the same time, side by side.
            by_time = sorted(rows, key=lambda row: (row.time_ms, row.side))
            chosen = by_time[-question.limit :] if question.reverse else by_time[: question.limit]
            return Cut(self._by_side(chosen))
        return self._by_side(rows)

    def _by_side(self, rows: Sequence[_Row]) -> dict[str, list[dict[str, Any]]]:
        told: dict[str, list[dict[str, Any]]] = {}
        for side, name in enumerate(self._sides):
            own = sorted((row for row in rows if row.side == side), key=lambda row: row.time_ms)
            told[name] = [
                {"time": row.time_ms, "value": None if row.is_deletion else value}
                for row, value in zip(own, self._values(side, own), strict=True)
            ]
        return told

    def _values(self, side: int, rows: Sequence[_Row]) -> list[dict[str, Any]]:
        lengths = [len(row.columns) for row in rows]
        starts = np.cumsum([0, *lengths], dtype=np.int64)[:-1]
        data = np.frombuffer(b"".join(row.columns for row in rows) + bytes(8), dtype=np.uint8)
        arrays = self._joined.codecs[side].decode(data, starts)
        names = [name for name, _ in self._joined.columns[side]]
        if not names:
            return [{} for _ in rows]
        return row_dicts(pa.RecordBatch.from_arrays(arrays, names=names)) if rows else []


def _time_at(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little", signed=True)
