"""Input files, their byte-range splits, and which subtask reads which.

Every subtask computes the same plan from the same files, so no coordination is needed. A line belongs to the
split in which its first byte lies.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import BinaryIO, TypeVar

import pyarrow as pa

from weir.operators.sources.files.compression import codec_of, decompressed
from weir.operators.sources.files.input_files import InputFiles, unreadable
from weir.operators.sources.files.local_input import LOCAL_INPUT

#: Bounds of a split of a plain file; small inputs are cut finer so that every subtask gets a share.
SPLIT_BYTES_MIN = 64 << 10
SPLIT_BYTES_MAX = 32 << 20
#: Splits that a subtask should get at least, where sizes allow it.
SPLITS_PER_SUBTASK = 4

_COUNT_BLOCK_BYTES = 4 << 20

_Unit = TypeVar("_Unit")


@dataclass(frozen=True, slots=True)
class Split:
    """Half-open byte range of one file; a compressed file is one split, its stop the size on disk.

    What is left of a split is a split too: its start is where a line starts (in decompressed bytes).
    """

    path: str
    start_bytes: int
    stop_bytes: int
    #: Of a compressed file; see ``compression``.
    codec: str | None = None
    #: Some of it was read before: a line starts at ``start_bytes``, or the file has changed.
    resumed: bool = False
    #: Bad lines before this position were put aside before.
    rejected_to_bytes: int = 0

    @property
    def compressed(self) -> bool:
        """Positions are those of decompressed bytes."""
        return self.codec is not None

    @property
    def size_bytes(self) -> int:
        """Bytes on disk that this split covers; a guess for the rest of a compressed file."""
        return max(1, self.stop_bytes - self.start_bytes)


def plan_splits(
    paths: Sequence[str],
    parallelism: int,
    *,
    whole_files: bool = False,
    files: InputFiles = LOCAL_INPUT,
    compression: str = "auto",
) -> list[Split]:
    """Cut files into splits, in file order; the same for every subtask of a stage.

    Args:
        paths: the files.
        parallelism: number of subtasks.
        whole_files: each file is one split.
        files: where they are.
        compression: see :func:`codec_of`.

    Raises:
        InputError: a file cannot be read.
    """
    sizes = [_size_bytes(path, files) for path in paths]
    wholes = [
        Split(path, 0, size, codec_of(path, compression))
        for path, size in zip(paths, sizes, strict=True)
        if size
    ]
    return wholes if whole_files else cut_splits(wholes, parallelism)


def cut_splits(splits: Sequence[Split], parallelism: int) -> list[Split]:
    """Cut splits of plain files into pieces for this many subtasks, in the order given."""
    share_bytes = sum(split.size_bytes for split in splits) // (parallelism * SPLITS_PER_SUBTASK)
    piece_bytes = min(SPLIT_BYTES_MAX, max(SPLIT_BYTES_MIN, share_bytes))
    cut: list[Split] = []
    for split in splits:
        if split.compressed:
            cut.append(split)
            continue
        # The last piece is never tiny: the remainder is spread over all pieces.
        size = split.size_bytes
        pieces = max(1, round(size / piece_bytes))
        edges = [split.start_bytes + size * piece // pieces for piece in range(pieces + 1)]
        for start, stop in itertools.pairwise(edges):
            resumed = split.resumed and start == split.start_bytes
            piece = replace(split, start_bytes=start, stop_bytes=stop, resumed=resumed)
            cut.append(piece)
    return cut


def _size_bytes(path: str, files: InputFiles) -> int:
    try:
        return files.size_bytes(path)
    except OSError as error:
        raise unreadable(path, error, "check its permissions") from error


def plan_number(shares: Sequence[Sequence[object]]) -> int:
    """Return the number of ``SourceReader.input_plan``; ``shares``: by subtask its units, whose ``repr`` tells all."""
    digest = hashlib.blake2b(repr(shares).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def assign(sizes: Sequence[int], units: Sequence[_Unit], parallelism: int) -> list[list[_Unit]]:
    """Share units over subtasks, biggest first to the least loaded; deterministic.

    Args:
        sizes: weight of each unit (bytes or rows).
        units: what to share, in input order.
        parallelism: number of subtasks.

    Returns:
        For each subtask its units, in input order.
    """
    loads = [0] * parallelism
    chosen: list[list[int]] = [[] for _ in range(parallelism)]
    for index in sorted(range(len(units)), key=lambda i: (-sizes[i], i)):
        subtask = min(range(parallelism), key=lambda s: (loads[s], s))
        loads[subtask] += sizes[index]
        chosen[subtask].append(index)
    return [[units[index] for index in sorted(indices)] for indices in chosen]


def assign_files(
    paths: Sequence[str], sizes: Sequence[int], units: Sequence[_Unit], parallelism: int
) -> list[list[_Unit]]:
    """Assign units as :func:`assign` does, but all of a file (``paths``: the file of each unit) to one subtask."""
    places: dict[str, list[int]] = {}
    for index, path in enumerate(paths):
        places.setdefault(path, []).append(index)
    files = list(places.values())
    shares = assign([sum(sizes[i] for i in indices) for indices in files], files, parallelism)
    return [[units[i] for indices in share for i in indices] for share in shares]


def share_evenly(events_max: int, subtasks: int) -> list[int]:
    """Quota of each subtask where nobody knows how many events there will be."""
    return [events_max // subtasks + (rank < events_max % subtasks) for rank in range(subtasks)]


def share_events(events_max: int, available: Sequence[int]) -> list[int]:
    """Share a total over subtasks as evenly as their numbers of events allow (water filling).

    Args:
        events_max: total to share.
        available: events that each subtask has, or any number above what it needs.

    Returns:
        Quota of each subtask; they add up to ``min(events_max, sum(available))``.
    """
    quotas = [0] * len(available)
    left = min(events_max, sum(available))
    order = sorted(range(len(available)), key=lambda i: (available[i], -i))
    for position, index in enumerate(order):
        quotas[index] = min(available[index], left // (len(order) - position))
        left -= quotas[index]
    return quotas


def line_quotas(
    events_max: int,
    assigned: Sequence[Sequence[Split]],
    count_rows: Callable[[Sequence[Split], int], int],
) -> list[int]:
    """Rows that each subtask may emit so that together they emit ``events_max``.

    Lines are counted only as far as needed: usually every subtask holds an equal share, which a look at the
    first lines shows. Exact when all lines are good; bad lines can make the total smaller when the input
    holds hardly more than ``events_max`` lines.

    Args:
        events_max: the limit for all subtasks together.
        assigned: the splits of each.
        count_rows: counts the rows of splits until there are so many, as :func:`count_lines`.

    Raises:
        InputError: a file cannot be read.
    """
    if len(assigned) == 1:
        return [events_max]
    share = -(-events_max // len(assigned))
    counts = [count_rows(splits, share) for splits in assigned]
    if any(count < share for count in counts):
        counts = [count_rows(splits, events_max) for splits in assigned]
    return share_events(events_max, counts)


def count_lines(splits: Sequence[Split], enough: int, files: InputFiles = LOCAL_INPUT) -> int:
    """Lines that start in the splits, counted until there are ``enough``; blank ones count."""
    count = 0
    for split in splits:
        if count >= enough:
            break
        try:
            count += _count_split(split, enough - count, files)
        except (OSError, pa.ArrowException) as error:
            if split.compressed:
                # It is read up to that place; the reader tells of it there.
                continue
            raise unreadable(split.path, error) from error
    return min(count, enough)


def _count_split(split: Split, enough: int, files: InputFiles) -> int:
    # A line starts after each newline in [start - 1, stop - 1), and at the start of the file.
    count = 1 if split.start_bytes == 0 and split.size_bytes > 0 else 0
    with open_split(split, files) as file:
        left = 1 << 62 if split.compressed else split.stop_bytes - 1 - max(0, split.start_bytes - 1)
        if split.start_bytes:
            file.seek(split.start_bytes - 1)
        block = b""
        while left > 0 and count < enough:
            block = file.read(min(left, _COUNT_BLOCK_BYTES))
            if not block:
                break
            count += block.count(b"\n")
            left -= len(block)
            last = block[-1:]
        if split.compressed and count < enough and count and last == b"\n":
            count -= 1
    return count


def after_last_line(files: InputFiles, path: str, start: int, stop: int) -> int:
    """Position after the last newline of a plain file between two positions; ``start`` if there is none.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        with files.open(path) as file:
            while stop > start:
                size = min(stop - start, _COUNT_BLOCK_BYTES)
                file.seek(stop - size)
                newline = file.read(size).rfind(b"\n")
                if newline >= 0:
                    return stop - size + newline + 1
                stop -= size
    except OSError as error:
        raise unreadable(path, error) from error
    return start


def open_split(split: Split, files: InputFiles = LOCAL_INPUT) -> BinaryIO:
    """The file of a split, opened for reading bytes at its beginning (decompressed if need be)."""
    if split.codec is not None:
        return decompressed(partial(files.open, split.path), split.codec)
    return files.open(split.path)
