"""The checker of linearizability finds what no order explains, and nothing else."""

import itertools
import random
import re

import pytest

from experiments.log_linear import NEVER, Append, Read, violations


def one(record_id, called_s, returned_s, offset=None, **more):
    return Append(record_id, called_s, returned_s, offset, **more)


FIRST, SECOND = one(1, 0.0, 1.0, 10), one(2, 2.0, 3.0, 11)
HOLDS = {
    "nothing": ([], []),
    "one after the other": ([FIRST, SECOND], [Read(4, 5, 10, 12, ((10, 1), (11, 2)))]),
    "side by side, in the other order": ([one(1, 0, 3, 11), one(2, 1, 2, 10)], []),
    "a read beside an append sees it": ([one(1, 1, 4, 10)], [Read(0, 2, 0, 11, ((10, 1),))]),
    "or does not": ([one(1, 1, 4, 10)], [Read(3, 5, 0, 10)]),
    "what is unknown may never be there": ([one(1, 0, NEVER)], [Read(5, 6, 0, 10)]),
    "or later than what was sent after it": (
        [one(1, 0, NEVER), SECOND],
        [Read(6, 7, 11, 13, ((11, 2), (12, 1)))],
    ),
    "a gap of the log": ([FIRST, one(2, 2, 3, 15)], [Read(4, 5, 0, 16, ((10, 1), (15, 2)))]),
    "a part of the log": ([FIRST, SECOND], [Read(4, 5, 10, 11, ((10, 1),), is_to_end=False)]),
    "what was rejected is not there": (
        [one(1, 0, 1, is_rejected=True), SECOND],
        [Read(4, 5, 0, 12, ((11, 2),))],
    ),
}
BROKEN = {
    "stale end": ([FIRST, SECOND], [Read(4, 5, 10, 11, ((10, 1),))], "record 2 at offset 11.* stands behind"),
    "an end that goes back": (
        [one(1, 0, 9, 10)],
        [Read(1, 2, 0, 11, ((10, 1),)), Read(3, 4, 0, 10)],
        "came too late",
    ),
    "out of order": ([one(1, 0, 1, 11), one(2, 2, 3, 10)], [], "stands behind"),
    "read before it was sent": (
        [one(1, 5, 6, 10)],
        [Read(0, 1, 0, 11, ((10, 1),), is_to_end=False)],
        "stands behind",
    ),
    "unknown, read, and then moved": (
        [one(1, 0, NEVER), SECOND],
        [Read(4, 5, 11, 13, ((11, 2), (12, 1))), Read(6, 7, 11, 12, ((11, 2),))],
        "came too late",
    ),
    "lost": ([FIRST, SECOND], [Read(4, 5, 10, 12, ((11, 2),))], r"differs from the log by \[\(10, 1\)\]"),
    "twice": ([FIRST], [Read(4, 5, 10, 12, ((10, 1), (11, 1)))], "is at offset 10 and at 11"),
    "nothing, where there is something": ([FIRST], [Read(4, 5, 10, 11, ())], r"differs from the log by"),
    "two at one offset": ([FIRST, one(2, 2, 3, 10)], [], "offset 10 has record 1 and record 2"),
    "rejected and read": (
        [one(1, 0, 1, is_rejected=True)],
        [Read(2, 3, 0, 11, ((10, 1),))],
        "was rejected, and read",
    ),
    "from nowhere": ([], [Read(2, 3, 0, 11, ((10, 1),))], "nobody has sent it"),
}


@pytest.mark.parametrize("name", HOLDS)
def test_what_can_have_happened_is_let_through(name):
    assert violations(*HOLDS[name]) == []


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_have_happened_is_told(name):
    appends, reads, why = BROKEN[name]
    assert re.search(why, violations(appends, reads)[0])


def by_search(appends, reads):
    """Whether some order explains it, by trying all of them."""
    operations = [
        each for each in [*appends, *reads] if not (isinstance(each, Append) and each.offset is None)
    ]
    for order in itertools.permutations(operations):
        now_s, end, holds = -NEVER, 0, True
        for each in order:
            now_s = max(now_s, each.called_s)
            holds = holds and now_s <= each.returned_s
            if isinstance(each, Append):
                holds, end = holds and each.offset >= end, each.offset + 1
            else:
                # Offsets ascend without gaps here.
                holds = holds and each.end_offset == end
        if holds:
            return True
    return False


def test_it_says_of_random_histories_what_trying_all_orders_says():
    chance = random.Random(17)
    verdicts = set()
    for _ in range(400):
        appends = []
        for number in range(chance.randint(1, 3)):
            called_s = chance.randint(0, 8)
            appends.append(one(number, called_s, called_s + chance.randint(0, 4), number))
        reads = []
        for _ in range(chance.randint(0, 2)):
            called_s, end = chance.randint(0, 10), chance.randint(0, len(appends))
            reads.append(
                Read(called_s, called_s + chance.randint(0, 4), 0, end, tuple((n, n) for n in range(end)))
            )
        holds = by_search(appends, reads)
        verdicts.add(holds)
        assert (not violations(appends, reads)) is holds, (appends, reads)
    assert verdicts == {True, False}
