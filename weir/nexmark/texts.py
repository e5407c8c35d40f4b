"""The texts of events: each is one of some thousand that are made once, chosen by a random number.

The reference makes a new text for every event; what queries look at (channels, URLs and their parts, letters) is
distributed in the same way here.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa

from weir.nexmark.randomness import Draws

FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = (
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent"),
    "Cheyenne",
)
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
CHANNELS = 10_000
#: Different texts of one kind.
_TEXTS = 4_096
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", dtype=np.uint8)


@cache
def letters(seed: int, shortest: int, longest: int, count: int = _TEXTS) -> pa.StringArray:
    """Texts of small letters, as many of each length."""
    draws = Draws(np.arange(count, dtype=np.int64), seed)
    lengths = shortest + draws.below(0, longest - shortest + 1)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    places = Draws(np.arange(int(offsets[-1]), dtype=np.int64), seed + 1).below(0, len(_LETTERS))
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(_LETTERS[places]))


@cache
def channel_names() -> pa.StringArray:
    """The hot channels, then the others."""
    return pa.array([*HOT_CHANNELS, *(f"channel-{number}" for number in range(CHANNELS))], pa.string())


@cache
def channel_urls(seed: int) -> pa.StringArray:
    """An URL for each of :func:`channel_names`; of ten of the others nine say which channel it is."""
    count = len(HOT_CHANNELS) + CHANNELS
    names = letters(seed + 2, 1, 5, 3 * count).to_pylist()
    says_so = (Draws(np.arange(count, dtype=np.int64), seed + 4).below(0, 10) > 0).tolist()
    urls = []
    for index in range(count):
        directories = "/".join(names[3 * index : 3 * index + 3])
        url = f"https://www.nexmark.com/{directories}/item.htm?query=1"
        number = index - len(HOT_CHANNELS)
        if number >= 0 and says_so[index]:
            url += f"&channel_id={_reversed_bits(number)}"
        urls.append(url)
    return pa.array(urls, pa.string())


@cache
def full_names() -> pa.StringArray:
    """Every first name with every last name."""
    return pa.array([f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES], pa.string())


@cache
def credit_cards(seed: int) -> pa.StringArray:
    """Four times four digits."""
    draws = Draws(np.arange(_TEXTS, dtype=np.int64), seed + 6)
    groups = zip(*(draws.below(field, 10_000).tolist() for field in range(4)), strict=True)
    return pa.array([" ".join(f"{group:04d}" for group in four) for four in groups], pa.string())


@cache
def email_addresses(seed: int) -> pa.StringArray:
    """Random names at random hosts."""
    names = letters(seed + 8, 3, 7).to_pylist()
    hosts = letters(seed + 10, 3, 5).to_pylist()
    return pa.array([f"{name}@{host}.com" for name, host in zip(names, hosts, strict=True)], pa.string())


def _reversed_bits(number: int) -> int:
    """The 32 bits of a number in reverse, as the absolute value of a signed integer."""
    reverse = int(f"{number:032b}"[::-1], 2)
    return reverse if reverse < 2**31 else 2**32 - reverse
