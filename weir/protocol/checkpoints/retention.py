"""Which checkpoints and files of a checkpoint store may go. Pure; docs/design/0002, "The store", has the rule."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

#: ``files/<checkpoint>/<store id>/<name>``.
_FILES = "files"


@dataclass(frozen=True, slots=True)
class Expired:
    """What may be deleted: the manifests first, so that no manifest ever names a file that is gone."""

    #: Checkpoint ids, ascending.
    manifests: tuple[int, ...]
    #: Numbers below ``files/`` whose directories may go as a whole.
    directories: tuple[int, ...]
    #: Paths of files in directories that must stay.
    paths: tuple[str, ...]


def checkpoint_of(path: str) -> int | None:
    """The number in ``files/<checkpoint>/...``: the checkpoint for which a file was written; None in another path."""
    first, _, rest = path.partition("/")
    number = rest.partition("/")[0]
    return int(number) if first == _FILES and number.isascii() and number.isdigit() else None


def expired(
    manifests: Mapping[int, Collection[str]],
    retained: int,
    *,
    directories: Iterable[int] = (),
    in_flight: Iterable[int] = (),
    files: Iterable[str] = (),
) -> Expired:
    """Choose what may go, so that the newest manifests stay, with every file that they name.

    A file goes when no manifest that stays names it and its checkpoint number is below that of the oldest manifest
    that stays and below those in flight: parts under way may name files that no manifest names yet.

    Args:
        manifests: by checkpoint id, the paths that each complete checkpoint in the store names
            (``Manifest.paths``). Savepoints are not among them.
        retained: this many of the newest stay; at least one.
        directories: numbers of the directories below ``files/``, those of checkpoints that failed included.
        in_flight: checkpoints that are being made, or that a job starts from.
        files: paths that are in the store, if that is known: those that no manifest ever named may go too.

    Raises:
        ValueError: ``retained`` is not positive.
    """
    if retained < 1:
        raise ValueError(f"retained is {retained}; at least one checkpoint must stay")
    busy = set(in_flight)
    ids = sorted(manifests)
    staying = {*ids[-retained:], *(busy & manifests.keys())}
    leaving = [checkpoint_id for checkpoint_id in ids if checkpoint_id not in staying]
    if not staying:
        return Expired((), (), ())
    below = min(staying | busy)
    named = {path for checkpoint_id in staying for path in manifests[checkpoint_id]}
    needed = {checkpoint_of(path) for path in named}
    gone = {number for number in directories if number < below and number not in needed}
    paths = set()
    for path in {*files, *(path for checkpoint_id in leaving for path in manifests[checkpoint_id])} - named:
        number = checkpoint_of(path)
        if number is not None and number < below and number not in gone:
            paths.add(path)
    return Expired(tuple(leaving), tuple(sorted(gone)), tuple(sorted(paths)))
