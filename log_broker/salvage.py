"""Brings back what a replica had before it began anew: for an operator, where a majority went down at once.

A replica that cannot trust its data begins anew, and others fill it. If nobody can, entries that are whole are worth
more than none. ``weir log accept-loss`` names the broker that has most of them then.
"""

from __future__ import annotations

import logging
import secrets
from pathlib import Path

from log_broker.errors import LogDamagedError
from log_broker.partition import DOCUMENT, boot_id
from log_broker.storage.places import ASIDE, DirectoryPlace, segment_name
from log_broker.storage.segment import Segment
from weir.errors import ConfigError

log = logging.getLogger("log_broker.salvage")


def salvage(directory: Path) -> int:
    """Put back what was set aside, as far as it is whole; the broker must not run. Blocks for as long as reading takes.

    Args:
        directory: of the replica, such as ``data/log/2/wal-0``. What is there now is set aside instead.

    Returns:
        Offset behind the last entry that is whole.

    Raises:
        ConfigError: nothing was set aside there.
        LogWriteError: the disk is full or broken.
        OSError: the same.
    """
    if not (directory / ASIDE).is_dir():
        raise ConfigError(
            f"{directory}: nothing was set aside; weir log status says which replicas began anew"
        )
    place = DirectoryPlace(directory)
    promised = max(_promised_epoch(place), _promised_epoch(DirectoryPlace(directory / ASIDE)))
    place.swap_aside(DOCUMENT)
    end_offset = _keep_whole(place)
    # Under another name: it is not what it was under the one before, and neither votes nor counts by itself.
    document = {
        "incarnation": secrets.randbits(63),
        "promised_epoch": promised,
        "boot_id": boot_id(),
        "is_clean": False,
        "end_offset": end_offset,
    }
    place.save(DOCUMENT, document, is_synced=True)
    return end_offset


def _promised_epoch(place: DirectoryPlace) -> int:
    try:
        document = place.load(DOCUMENT)
    except LogDamagedError:
        return 0
    return 0 if document is None else int(document["promised_epoch"])


def _keep_whole(place: DirectoryPlace) -> int:
    """Keep segments from the first one on, up to the first entry that is not whole; returns the offset behind."""
    bases, starts = place.bases(), place.starts()
    end_offset, epoch, is_whole = min(bases, default=0), 0, True
    # What lies before the first one is left of a removal that did not end.
    for base in sorted({*bases, *(each for each in starts if each >= end_offset)}):
        is_whole = is_whole and base == end_offset and base in bases and _has_start(place, base)
        if is_whole:
            end_offset, epoch, is_whole = _keep_entries(Segment(place, base), end_offset, epoch)
        else:
            log.warning("%s: what begins at offset %d does not follow, and is removed", place.name, base)
            place.remove(base)
    return end_offset


def _has_start(place: DirectoryPlace, base: int) -> bool:
    """Return whether the document can be read without which a broker begins anew once more."""
    try:
        return place.load(f"{segment_name(base)}.start") is not None
    except LogDamagedError:
        return False


def _keep_entries(segment: Segment, end_offset: int, epoch: int) -> tuple[int, int, bool]:
    """Cut a segment at its first entry that does not follow; returns offset, epoch there, and whether all do."""
    size = 0
    try:
        for entry in segment.scan(whole_may_be_torn=True):
            if entry.envelope.offset != end_offset or entry.envelope.epoch < epoch:
                raise LogDamagedError("an entry that was replaced lies there")
            size += entry.envelope.entry_bytes
            end_offset, epoch = entry.end_offset, entry.envelope.epoch
    except LogDamagedError as error:
        log.warning("cut at offset %d: %s", end_offset, error)
        segment.cut(size)
        return end_offset, epoch, False
    return end_offset, epoch, True
