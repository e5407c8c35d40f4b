"""Numba kernels that copy the texts of a page to where those of their consumers are put together.

Each consumer has memory of its own, wherever that is, so places in it are addresses. What the kernels read comes from
files: whatever the bytes say, nothing is read beyond a page, and nothing written beyond what a consumer has.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weir.kernels.bytes import PADDING_BYTES, byte_at, copy_line_to, load4, prefetch_to_write, store_byte_to
from weir.kernels.declare import byte_kernel, byte_kernel_part
from weir.kernels.kernel_types import BYTES, INT, INTS, OFFSETS, TYPES

_COPIED_BYTES = 64
#: So far ahead the memory of a consumer is fetched into the caches. The processor foretells few stores, and waits.
_AHEAD_BYTES = 4096


class Targets(NamedTuple):
    """Where the texts of consumers are put together."""

    #: Int32, shape (rows,): the consumer of each row.
    owners: np.ndarray
    #: Int64, by consumer: the addresses at which its texts begin.
    starts: np.ndarray
    #: Int64, where the next one goes; changed.
    to: np.ndarray
    #: Int64, where they must end; the next ``PADDING_BYTES`` are nobody's, and are overwritten.
    stops: np.ndarray
    #: Int32, filled: the end of each text, counted from the first one of its consumer.
    offsets: np.ndarray
    #: Int64, where the next of these goes; changed.
    nexts: np.ndarray


TARGETS_TYPE = TYPES.NamedTuple((OFFSETS, INTS, INTS, INTS, OFFSETS, INTS), Targets)


@byte_kernel(TYPES.void(TYPES.Array(TYPES.uint32, 1, "C"), INTS, OFFSETS))
def name_owners(order: np.ndarray, ends: np.ndarray, owners: np.ndarray) -> None:
    """The consumer of each row.

    Args:
        order: uint32, row numbers by consumer, each row once.
        ends: int64, where the rows of each consumer end in ``order``, after a 0.
        owners: int32, shape (rows,); filled.
    """
    for owner in range(len(ends) - 1):
        for place in range(ends[owner], ends[owner + 1]):
            owners[order[place]] = owner


@byte_kernel_part
def copy_text_to(data: np.ndarray, at: int, length: int, address: int, safe: int) -> None:
    """Copy bytes, 64 at a time where they end at ``safe`` or before it; ``PADDING_BYTES`` more are overwritten."""
    if at + length <= safe:
        done = 0
        while done < length:
            prefetch_to_write(address + done + _AHEAD_BYTES)
            copy_line_to(address + done, data, at + done)
            done += _COPIED_BYTES
    else:
        for place in range(length):
            store_byte_to(address + place, byte_at(data, at + place))


@byte_kernel_part
def end_text(targets: Targets, owner: int, address: int) -> None:
    """Note that a text of a consumer ends here."""
    targets.to[owner] = address
    targets.offsets[targets.nexts[owner]] = address - targets.starts[owner]
    targets.nexts[owner] += 1


@byte_kernel(INT(BYTES, INT, INT, INT, TARGETS_TYPE))
def divide_plain(data: np.ndarray, at: int, count: int, row: int, targets: Targets) -> int:
    """Copy plain texts, each after four bytes with its length, to the texts of their consumers.

    Args:
        data: uint8, shape (bytes,): the page; every row has a value.
        at: where the first one begins.
        count: rows of the page.
        row: number of the first row among those of ``targets``.
        targets: changed.

    Returns:
        Position after them; -1: the page is damaged, or there is no room.
    """
    stop = len(data)
    safe = stop - PADDING_BYTES
    for number in range(count):
        if at + 4 > stop:
            return -1
        length = int(load4(data, at))
        at += 4
        owner = targets.owners[row + number]
        address = targets.to[owner]
        if length > stop - at or address + length > targets.stops[owner]:
            return -1
        copy_text_to(data, at, length, address, safe)
        at += length
        end_text(targets, owner, address + length)
    return at


@byte_kernel(INT(BYTES, OFFSETS, OFFSETS, INT, INT, TARGETS_TYPE))
def divide_found(
    data: np.ndarray, begins: np.ndarray, lengths: np.ndarray, count: int, row: int, targets: Targets
) -> int:
    """As :func:`divide_plain`, of texts of which it is known where they lie.

    Args:
        data: uint8, shape (bytes,).
        begins: int32, where each text lies in it.
        lengths: int32, their bytes.
        count: rows of the page.
        row: number of the first row among those of ``targets``.
        targets: changed.

    Returns:
        ``count``; -1: there is no room.
    """
    safe = len(data) - PADDING_BYTES
    for number in range(count):
        length = int(lengths[number])
        owner = targets.owners[row + number]
        address = targets.to[owner]
        if address + length > targets.stops[owner]:
            return -1
        copy_text_to(data, int(begins[number]), length, address, safe)
        end_text(targets, owner, address + length)
    return count
