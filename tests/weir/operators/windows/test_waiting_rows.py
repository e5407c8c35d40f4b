"""Late rows that wait for a watermark: in its order, over restarts, and with key groups that come and go."""

import random
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest

import weir
from weir import testing
from weir.operators.windows.rows.waiting_rows import WaitingRows
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables

GROUPS = 8


class Owner:
    """Who has some key groups, over a store that others have, too."""

    def __init__(self, store, groups):
        self.tables = StateTables(store, 1 << 20, GROUPS, sorted(groups))
        tables = self.tables.of("w", {"": 1, "_late": 2})
        self.windows, self.waiting = tables.windows(1), WaitingRows(tables, "_late")
        self.groups = set(groups)
        self.waiting.look(self.windows)

    def release(self, groups):
        for table in self.tables:
            table.release_groups(groups)
        self.groups -= groups
        self.waiting.look(self.windows)

    def adopt(self, groups):
        for table in self.tables:
            table.adopt_groups(groups)
        self.groups |= groups
        self.waiting.look(self.windows)


def rows(*numbers):
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


@pytest.mark.parametrize("seed", range(5))
def test_rows_leave_with_their_watermark_whoever_has_them(seed):
    rng, store = random.Random(seed), MemoryBackend()
    owners, number = [Owner(store, range(4)), Owner(store, range(4, GROUPS))], 0
    left: dict[int, list[int]] = defaultdict(list)
    for _ in range(60):
        what, owner = rng.random(), rng.choice(owners)
        if what < 0.6 and owner.groups:
            numbers = list(range(number, number := number + rng.randint(1, 5)))
            groups = [rng.choice(sorted(owner.groups)) for _ in numbers]
            marks = [rng.randint(-3, 9) for _ in numbers]
            for at, mark in zip(numbers, marks, strict=True):
                left[mark].append(at)
            owner.waiting.put(rows(*numbers), np.array(marks), np.array(groups))
        elif what < 0.75:
            moved = set(rng.sample(sorted(owner.groups), len(owner.groups) // 2))
            owner.release(moved)
            next(other for other in owners if other is not owner).adopt(moved)
        elif what < 0.85:
            for each in owners:
                each.tables.flush()
            owners = [Owner(store, each.groups) for each in owners]
        elif left:
            mark = min(left)
            assert min(each.waiting.first_ms for each in owners) == mark
            took = [each.waiting.take() for each in owners if each.waiting.first_ms == mark]
            assert sorted(n for part in took for batch in part for n in batch["n"].to_pylist()) == left.pop(
                mark
            )


def test_keys_of_the_store():
    store = MemoryBackend()
    owner = Owner(store, range(GROUPS))
    owner.waiting.put(rows(1), np.array([5]), np.array([3]))
    owner.waiting.put(rows(2), np.array([5]), np.array([3]))
    owner.tables.flush()
    found = [key.hex() for key, _ in store.scan(bytes([0, 3]), bytes([0, 4])) if key[2:4] == bytes([0, 2])]
    assert found == ["00030002008000000000000005" + "00" * 7 + last for last in ("00", "01")]


def test_a_row_waits_in_a_savepoint_for_other_parallelism():
    def flow(parallelism):
        made = weir.Dataflow("job")
        bound = weir.bounded_out_of_orderness("0s")
        streams = [
            made.source(
                name,
                weir.JsonLines(f"{name}.jsonl", schema={"k": str, "at": int}),
                event_time="at",
                watermark=bound,
            )
            for name in ("ahead", "behind")
        ]
        counted = streams[0].union("all", streams[1]).key_by("k").window(weir.sliding(10, 5))
        counted.aggregate("n", n=weir.count(), parallelism=parallelism).sink("out", weir.Collect())
        return made

    sources = {"ahead": [], "behind": []}
    with testing.start(flow(1), sources, watermarks="follow_rows") as job:
        job.push("behind", [{"k": "a", "at": 1}])
        # At 7 the window from -5 to 5 is over as of this split, and that from 0 to 10 is not.
        job.push("ahead", [{"k": "a", "at": 7}, {"k": "a", "at": 4}])
        savepoint = job.savepoint()
    with testing.start(flow(3), sources, watermarks="follow_rows", from_savepoint=savepoint) as job:
        found = sorted((row["window_start"], row["n"]) for row in job.finish()["out"])
    assert found == [(-5, 1), (0, 3), (5, 1)]
