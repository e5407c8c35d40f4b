"""How much of a cache is copied to a new owner at a time, and how often. Pure decisions of ``cache_copy``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CopyTimes:
    """How long the rescale waits for what an owner sends ahead, at most; the coordinator waits 5 s for the answer.

    Attributes:
        copy_s: for what is cached.
        changes_s: for what changed meanwhile, in all rounds together.
        rest_s: for writing what is dirty then.
    """

    copy_s: float
    changes_s: float
    rest_s: float


#: Where what is not copied has to be asked of a busy owner later on.
COPY_TIMES = CopyTimes(2.0, 1.0, 0.5)
#: Where the new owner reads everything else from tables of a checkpoint: a rescale is through in two seconds then, and
#: what was used last goes first.
RELINKED_TIMES = CopyTimes(0.6, 0.3, 0.15)
#: And for what has changed since that checkpoint: beside the copies, and after them. Rows wait for what is left.
AHEAD_S_MAX, AHEAD_AGAIN_S_MAX = 1.0, 0.25

#: Groups whose cached state is written and copied between two batches, at first.
COPIED_AT_FIRST = 1
#: Groups that are only written between two batches, or of which only changes are copied, at first.
WRITTEN_AT_FIRST = 16
#: How long rows should wait for the writing and copying of a part.
_PART_S_WANTED = 0.002
#: Cached state that goes ahead of the groups of one new owner, at most; mostly there is no time for as much.
COPIED_BYTES_MAX = 128 << 20
#: The same where the new owner reads everything else from tables of a checkpoint.
RELINKED_BYTES_MAX = 16 << 20
#: Of each group at least so much is copied, whatever the time.
_GROUP_BYTES_MIN = 4 << 10
#: Of the time that is left, what is counted on: the rest is for parts that take longer than others did.
_SHARE_COUNTED_ON = 0.8
#: What changed during a copy is sent ahead, too, if it is more than this: rows of its groups would wait for it.
_CHANGED_BYTES_MIN = 256 << 10
#: A further round is worth its while if this one had so much less than the one before.
_ROUND_SHRINKS = 0.75


def next_part(groups: int, duration_s: float) -> int:
    """How many groups to take next, after so many took so long between two batches; at least 1.

    With little state all of them soon go at once. Called for each part.
    """
    wanted = groups * _PART_S_WANTED / max(duration_s, 1e-6)
    return max(1, round(min(max(wanted, groups / 2), groups * 2)))


def part_bytes_max(
    groups: int,
    groups_left: int,
    sent_bytes: int,
    took_s: float,
    left_s: float,
    bytes_max: int = COPIED_BYTES_MAX,
) -> int:
    """How many bytes to copy of a part, so that each group that is left gets its share of the time; those used last.

    Args:
        groups: of the part.
        groups_left: that have not been copied yet, those of the part included.
        sent_bytes: of the parts before, which
        took_s: have taken so long.
        left_s: until copying must end.
        bytes_max: of all of them.
    """
    budget = float(bytes_max - sent_bytes)
    if sent_bytes and took_s > 0:
        budget = min(budget, _SHARE_COUNTED_ON * left_s * sent_bytes / took_s)
    return max(int(budget * groups / groups_left), _GROUP_BYTES_MIN * groups)


def needs_round(changed_bytes: int, before_bytes: int) -> bool:
    """Return whether what changed since a round, in which so many bytes had changed, should be sent ahead, too.

    Without it rows of the groups would wait at the handover until all of it is sent; but where as much changes as can
    be sent meanwhile, another round changes nothing. ``before_bytes``: of the round before.
    """
    return changed_bytes > _CHANGED_BYTES_MIN and changed_bytes < _ROUND_SHRINKS * before_bytes
