"""Whether what clients of one partition have seen could have happened one operation after the other (linearizability).

Offsets are one order for all appends, so this takes a sort, where histories without such an order take a search: each
operation is given the earliest moment that the order allows, and must have one between its call and its return.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

#: Of what has no answer, or an answer that says nothing: it may happen at any later time.
NEVER = math.inf


@dataclass(frozen=True)
class Append:
    """One record that somebody has sent."""

    record_id: int
    called_s: float
    #: ``NEVER``: it is not known whether it was written.
    returned_s: float
    #: As answered; None: none was.
    offset: int | None = None
    #: It was said that it is surely not written.
    is_rejected: bool = False


@dataclass(frozen=True)
class Read:
    """All records of a range of offsets, as somebody was given them, or the end of the log alone."""

    called_s: float
    returned_s: float
    begin_offset: int
    end_offset: int
    #: (offset, id), ascending; None: only the end was asked for.
    records: tuple[tuple[int, int], ...] | None = None
    #: Whether ``end_offset`` is the end of the log; else only that so much was there.
    is_to_end: bool = True


def violations(appends: Sequence[Append], reads: Sequence[Read]) -> list[str]:
    """Return why no order of these operations explains them; empty: one does.

    Args:
        appends: each id once.
        reads: of any clients.
    """
    found: list[str] = []
    by_id = {append.record_id: append for append in appends}
    offsets = _offsets(appends, reads, found)
    log = sorted((offset, record_id) for record_id, offset in offsets.items())
    places = [offset for offset, _ in log]
    for (one, first), (other, second) in pairwise(log):
        if one == other:
            found.append(f"offset {one} has record {first} and record {second}")
    for record_id in offsets:
        if record_id not in by_id:
            found.append(f"record {record_id} was read, and nobody has sent it")
        elif by_id[record_id].is_rejected:
            found.append(f"record {record_id} was rejected, and read")
    #: By place in the log: nobody may have seen it later than this.
    seen_s = [NEVER] * len(log)
    for read in reads:
        first, last = bisect_left(places, read.begin_offset), bisect_left(places, read.end_offset)
        if read.records is not None and list(read.records) != log[first:last]:
            absent = set(log[first:last]).symmetric_difference(read.records)
            found.append(f"{_shown(read)} differs from the log by {sorted(absent)[:5]}")
        if last and not read.is_to_end:
            seen_s[last - 1] = min(seen_s[last - 1], read.returned_s)
    if found:
        return found
    untimely = _untimely(by_id, log, places, seen_s, [read for read in reads if read.is_to_end])
    return [untimely] if untimely else []


def _offsets(appends: Iterable[Append], reads: Iterable[Read], found: list[str]) -> dict[int, int]:
    """Return the offset of each record that is known to be there, by id."""
    offsets: dict[int, int] = {}
    told = [(each.record_id, each.offset) for each in appends if each.offset is not None]
    told += [(record_id, offset) for read in reads for offset, record_id in read.records or ()]
    for record_id, offset in told:
        if offsets.setdefault(record_id, offset) != offset:
            found.append(f"record {record_id} is at offset {offsets[record_id]} and at {offset}")
    return offsets


def _untimely(
    by_id: dict[int, Append],
    log: Sequence[tuple[int, int]],
    places: Sequence[int],
    seen_s: Sequence[float],
    reads: Iterable[Read],
) -> str:
    """Return the first operation for which no moment is left between its call and its return; "": all have one."""
    waiting = sorted(reads, key=lambda read: (bisect_left(places, read.end_offset), read.called_s))
    now_s, next_read = -NEVER, 0
    # Latest first: who saw a record saw those before it.
    limits, limit = [NEVER] * len(log), NEVER
    for place in range(len(log) - 1, -1, -1):
        limit = min(limit, seen_s[place])
        limits[place] = limit
    for place in range(len(log) + 1):
        while next_read < len(waiting) and bisect_left(places, waiting[next_read].end_offset) == place:
            read = waiting[next_read]
            now_s = max(now_s, read.called_s)
            if now_s > read.returned_s:
                return f"{_shown(read)} came too late: what is behind its end was there before"
            next_read += 1
        if place == len(log):
            break
        offset, record_id = log[place]
        append = by_id[record_id]
        now_s = max(now_s, append.called_s)
        if now_s > min(append.returned_s, limits[place]):
            return (
                f"record {record_id} at offset {offset}, sent from {append.called_s:.3f} to {append.returned_s:.3f} s, "
                f"stands behind something that began at {now_s:.3f} s"
            )
    return ""


def _shown(read: Read) -> str:
    return f"the read of {read.begin_offset} to {read.end_offset}, from {read.called_s:.3f} to {read.returned_s:.3f} s,"
