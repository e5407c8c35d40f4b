"""Texts of a page copied to their consumers, each of whom has no byte more than its texts and the padding."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from weir.kernels.bytes import PADDING_BYTES
from weir.operators.sources.parquet.parquet_division import Targets, divide_found, divide_plain, name_owners


def divided(
    texts: Sequence[bytes], owners: Sequence[int], *, is_found: bool, short: int
) -> list[bytes] | None:
    """All texts of each of three consumers, of whom the first has ``short`` bytes too few; None: there is no room.

    Nothing is written before or after what they have.
    """
    page = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    data = np.frombuffer(page, dtype=np.uint8).copy()
    lengths = np.array([len(text) for text in texts], dtype=np.int32)
    begins = (np.cumsum(lengths + 4) - lengths).astype(np.int32)
    rooms = [
        sum(len(text) for text, of in zip(texts, owners, strict=True) if of == owner) for owner in range(3)
    ]
    rooms[0] -= short
    memories = [np.full(room + 2 * PADDING_BYTES + 32, 170, dtype=np.uint8) for room in rooms]
    starts = np.array([memory.ctypes.data + 32 for memory in memories])
    to, stops = starts.copy(), starts + rooms
    order = np.array(sorted(range(len(texts)), key=owners.__getitem__), dtype=np.uint32)
    ends = np.cumsum([0, *(owners.count(owner) for owner in range(3))])
    of_rows = np.empty(len(texts), dtype=np.int32)
    name_owners(order, ends, of_rows)
    assert of_rows.tolist() == owners
    offsets = np.zeros(len(texts) + 3, dtype=np.int32)
    targets = Targets(of_rows, starts, to, stops, offsets, ends[:-1] + np.arange(3) + 1)
    if is_found:
        after = divide_found(data, begins, lengths, len(texts), 0, targets)
        assert after in (-1, len(texts))
    else:
        after = divide_plain(data, 0, len(texts), 0, targets)
        assert after in (-1, len(page))
    for memory in memories:
        assert (memory[:32] == 170).all()
        assert (memory[-PADDING_BYTES:] == 170).all()
    if after < 0:
        return None
    lasts = [offsets[end + owner] for owner, end in enumerate(ends[1:])]
    assert lasts == rooms
    return [memory[32 : 32 + room].tobytes() for memory, room in zip(memories, rooms, strict=True)]


@pytest.mark.parametrize("is_found", [True, False])
@pytest.mark.parametrize("longest", [5, 64, 130, 5000])
@pytest.mark.parametrize("seed", range(10))
def test_each_consumer_has_its_texts(seed, longest, is_found):
    draw = random.Random(seed)
    sizes = [*range(min(longest, 200)), *(draw.randrange(longest + 1) for _ in range(40))]
    draw.shuffle(sizes)
    texts = [draw.randbytes(size) for size in sizes]
    owners = [draw.randrange(3) for _ in texts]
    expected = [
        b"".join(text for text, of in zip(texts, owners, strict=True) if of == owner) for owner in range(3)
    ]
    assert divided(texts, owners, is_found=is_found, short=0) == expected
    assert divided(texts, owners, is_found=is_found, short=1) is None
