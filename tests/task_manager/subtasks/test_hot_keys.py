"""The sketch of hot keys: what it tells is never too much, and no hot key is missed."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from task_manager.subtasks.hot_keys import HotKeys
from task_manager.subtasks.row_sample import RowSample
from weir.keys.hashing import key_groups
from weir.rows.records import KEY_HASH_COLUMN


@pytest.mark.parametrize("seed", range(5))
def test_it_agrees_with_counting_everything_but_for_what_it_may_be_wrong(seed):
    rng = np.random.default_rng(seed)
    sketch, counted, rows = HotKeys(1.0), Counter(), 0
    for _ in range(40):
        keys = np.minimum(rng.zipf(1.3, 2_000), 50_000).astype(np.uint64)
        sketch.add(keys, lambda row, keys=keys: str(keys[row]))
        counted.update(keys.tolist())
        rows += len(keys)
    told = {key: share for _, key, share in sketch.top(64)}
    assert all(share <= counted[key] / rows + 1e-9 for key, share in told.items())
    hot = [key for key, count in counted.items() if count / rows >= 0.05]
    assert hot
    assert all(told[key] == pytest.approx(counted[key] / rows, abs=0.01) for key in hot)
    assert all(text == str(key) for text, key, _ in sketch.top(64))
    shares = [share for _, _, share in sketch.top(64)]
    assert shares == sorted(shares, reverse=True)


def test_a_key_that_is_not_hot_any_more_is_forgotten():
    sketch = HotKeys(0.9)
    for number in range(60):
        keys = np.full(100, 1 if number < 30 else 2, np.uint64)
        sketch.add(keys, lambda row, keys=keys: str(keys[row]))
    (text, _, share), *rest = sketch.top(5)
    assert (text, share > 0.9) == ("2", True)
    assert not rest or rest[0][2] < 0.1


def test_uniform_keys_are_not_told():
    sketch, rng = HotKeys(0.9), np.random.default_rng(1)
    for _ in range(30):
        keys = rng.integers(0, 1 << 40, 1_000, dtype=np.uint64)
        sketch.add(keys, lambda row: "")
    assert sketch.top(5) == []


def test_a_sample_of_rows_names_keys_by_the_columns_of_their_input():
    sample = RowSample()
    sample.group_count = 128
    sample.key_columns = {0: ("user", "day"), 1: ("name",)}
    hashes = np.array([1 << 63, 5, 1 << 63, 1 << 63], np.uint64)
    columns = {"user": ["ann", "bob", "ann", "ann"], "day": [1, 2, 1, 1], "name": ["x" * 100] * 4}
    batch = pa.record_batch(columns | {KEY_HASH_COLUMN: pa.array(hashes)})
    sample.take(batch, 0, 0)
    groups, keys = sample.hot_parts()
    assert [(part.key, part.share) for part in keys] == [("ann, 1", 0.75), ("bob, 2", 0.25)]
    assert [part.group for part in keys] == key_groups(hashes[:2], 128).tolist()
    assert [(part.group, part.share) for part in groups] == [(part.group, part.share) for part in keys]
    other = RowSample()
    other.group_count, other.key_columns = 128, sample.key_columns
    other.take(batch, 0, 1)
    assert other.hot_parts()[1][0].key == "x" * 60
