"""What an old owner says of key groups that their new owner may open in the images of a checkpoint. Pure.

See docs/design/0019.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

#: Of entries that one old owner sends to one new one while it goes on, and at the handover: rows of the groups wait for
#: these.
AHEAD_BYTES_MAX = 32 << 20
SENT_BYTES_MAX = 16 << 20
#: Names of deleted keys in one handover, which is one message.
DELETED_BYTES_MAX = 512 << 10


@dataclass(frozen=True)
class RelinkOffer:
    """The state of some groups is that of a checkpoint, with entries that were sent, and without some keys."""

    checkpoint_id: int
    #: Keys that are not to be found in the checkpoint's images any more.
    deleted_keys: tuple[bytes, ...] = ()


def offers(
    checkpoint_id: int, groups: Mapping[int, int], deleted: Mapping[int, Iterable[bytes]]
) -> Iterator[tuple[dict[int, int], RelinkOffer]]:
    """Divide groups (with their epochs) among handovers, so that no message becomes large.

    Args:
        checkpoint_id: of the images.
        groups: of each of which all deleted keys fit into one message.
        deleted: by group.
    """
    part: dict[int, int] = {}
    keys: list[bytes] = []
    size_bytes = 0
    for group, epoch in groups.items():
        gone = list(deleted.get(group, ()))
        gone_bytes = sum(map(len, gone))
        if part and size_bytes + gone_bytes > DELETED_BYTES_MAX:
            yield part, RelinkOffer(checkpoint_id, tuple(keys))
            part, keys, size_bytes = {}, [], 0
        part[group] = epoch
        keys += gone
        size_bytes += gone_bytes
    if part:
        yield part, RelinkOffer(checkpoint_id, tuple(keys))
