"""A scan of a store with unwritten entries laid over it."""

from __future__ import annotations

from collections.abc import Iterator


def overlaid(
    below: Iterator[tuple[bytes, bytes]], overlay: list[tuple[bytes, bytes | None]], reverse: bool
) -> Iterator[tuple[bytes, bytes]]:
    """Both in the same order; of equal keys the overlay's wins, and its None hides the key."""
    position = 0
    for entry in below:
        while position < len(overlay) and (
            overlay[position][0] > entry[0] if reverse else overlay[position][0] < entry[0]
        ):
            key, value = overlay[position]
            position += 1
            if value is not None:
                yield key, value
        if position < len(overlay) and overlay[position][0] == entry[0]:
            key, value = overlay[position]
            position += 1
            if value is not None:
                yield key, value
        else:
            yield entry
    for key, value in overlay[position:]:
        if value is not None:
            yield key, value
