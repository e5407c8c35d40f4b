"""An independent checker of the log: what was acknowledged is there once, in order, and the replicas agree.

It knows nothing of the code that it checks but the bytes of entries, which it reads with a reader of its own.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_ENVELOPE = struct.Struct("<IIQQII")
_HEADER = struct.Struct("<HBBIqqQIQII")
_CONTROL = 0x10


@dataclass
class Findings:
    """What is wrong; empty: nothing."""

    lost: list[int] = field(default_factory=list)
    doubled: list[int] = field(default_factory=list)
    reordered: list[int] = field(default_factory=list)
    #: Acknowledged at another offset than where they are.
    misplaced: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.lost or self.doubled or self.reordered or self.misplaced)


def check_history(
    acknowledged: Mapping[int, int], read: Iterable[tuple[int, int]], producer_of: int = 1_000_000_000
) -> Findings:
    """Compare acknowledged records with those that were read.

    Args:
        acknowledged: offsets by id; a producer's ids ascend in the order in which it sent them.
        read: (offset, id) in the order in which they were read.
        producer_of: ids with the same quotient by it are of one producer.
    """
    findings = Findings()
    places: dict[int, int] = {}
    counts: Counter[int] = Counter()
    latest: dict[int, int] = {}
    last_offset = -1
    for offset, record_id in read:
        counts[record_id] += 1
        places.setdefault(record_id, offset)
        producer = record_id // producer_of
        if offset <= last_offset or record_id < latest.get(producer, record_id):
            findings.reordered.append(record_id)
        last_offset, latest[producer] = offset, record_id
    findings.doubled = [record_id for record_id, count in counts.items() if count > 1]
    findings.lost = [record_id for record_id in acknowledged if record_id not in places]
    findings.misplaced = [
        record_id
        for record_id, offset in acknowledged.items()
        if record_id in places and places[record_id] != offset
    ]
    return findings


def stored_ids(directory: Path) -> list[tuple[int, int]]:
    """Read (offset, id) of every record of a replica's segments, which are not compressed."""
    found = []
    for path in sorted(directory.glob("*.log")):
        content, position = path.read_bytes(), 0
        while position < len(content):
            batch_bytes, _, offset, _, _, _ = _ENVELOPE.unpack_from(content, position)
            start = position + _ENVELOPE.size
            _, _, flags, count, *_ = _HEADER.unpack_from(content, start)
            if not flags & _CONTROL:
                ids = struct.unpack_from(f"<{count}q", content, start + _HEADER.size)
                found += [(offset + index, record_id) for index, record_id in enumerate(ids)]
            position = start + batch_bytes
    return found
