"""Brings back what a replica had before it began anew: for an operator, where a majority went down at once.

A replica that cannot trust its data begins anew, and others fill it. If nobody can, entries that are whole are worth
more than none. ``weir log accept-loss`` names the broker that has most of them then.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass
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
    place = DirectoryPlace(directory) if directory.is_dir() else None
    if place is not None:
        # Else what a broker had no time to move any more would be taken for what was put back.
        place.end_set_aside(DOCUMENT)
    if place is None or not (place.asides() or place.begun_swap()):
        raise ConfigError(
            f"{directory}: nothing was set aside; weir log status says which replicas began anew"
        )
    documents = [directory / DOCUMENT, *directory.glob(f"{ASIDE}*/{DOCUMENT}")]
    promised = max(map(_promised_epoch, documents))
    begun = place.begun_swap()
    # Segments without a document have been put back by an earlier call, which died then.
    if begun or documents[0].exists() or not place.bases():
        place.swap_aside(begun or _most(place.asides()), DOCUMENT)
    end_offset = _keep(place, _whole_part(place))
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


@dataclass(frozen=True)
class _Whole:
    """What is whole of a replica's data, from its first entry on."""

    #: Epoch of its last entry, and offset behind it. The greater one has all that was acknowledged of both.
    extent: tuple[int, int]
    #: Bytes of each segment, by its base offset.
    kept: dict[int, int]


def _promised_epoch(file: Path) -> int:
    try:
        document = DirectoryPlace(file.parent).load(file.name)
    except LogDamagedError:
        return 0
    return 0 if document is None else int(document["promised_epoch"])


def _most(folders: list[Path]) -> Path:
    """Return the one with the most that is whole: the replica began anew more than once before it was filled."""
    if len(folders) == 1:
        return folders[0]
    found = {folder: _whole_part(DirectoryPlace(folder)).extent for folder in folders}
    for folder, (epoch, end_offset) in found.items():
        log.warning("%s: whole up to offset %d, of epoch %d", folder, end_offset, epoch)
    return max(folders, key=found.__getitem__)


def _whole_part(place: DirectoryPlace) -> _Whole:
    """Look at segments from the first one on, up to the first entry that is not whole; nothing is changed."""
    bases = place.bases()
    end_offset, epoch, kept = min(bases, default=0), 0, dict[int, int]()
    for base in bases:
        if base != end_offset or not _has_start(place, base):
            break
        kept[base] = 0
        try:
            for entry in Segment(place, base).scan(whole_may_be_torn=True, cuts=False):
                if entry.envelope.epoch < epoch:
                    raise LogDamagedError(f"{place.name}: an entry that was replaced lies at {end_offset}")
                kept[base] += entry.envelope.entry_bytes
                end_offset, epoch = entry.end_offset, entry.envelope.epoch
        except LogDamagedError as error:
            log.warning("whole up to offset %d: %s", end_offset, error)
            break
    return _Whole((epoch, end_offset), kept)


def _has_start(place: DirectoryPlace, base: int) -> bool:
    """Whether the document can be read without which a broker begins anew once more."""
    try:
        return place.load(f"{segment_name(base)}.start") is not None
    except LogDamagedError:
        return False


def _keep(place: DirectoryPlace, whole: _Whole) -> int:
    """Remove what is not whole; returns the offset behind the rest."""
    bases = place.bases()
    # What lies before the first one is left of a removal that did not end.
    for base in sorted({*bases, *(each for each in place.starts() if each >= min(bases, default=0))}):
        size = whole.kept.get(base)
        if size is None:
            log.warning("%s: what begins at offset %d does not follow, and is removed", place.name, base)
            place.remove(base)
        elif size != (segment := Segment(place, base)).file_bytes():
            segment.cut(size)
    return whole.extent[1]
