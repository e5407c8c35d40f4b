import numpy as np
import pyarrow as pa
import pytest

from task_manager.subtasks.row_sample import RowSample
from weir.keys.hashing import key_groups
from weir.protocol.job.latency_share import share_below
from weir.rows.records import INGEST_TIME_COLUMN, KEY_HASH_COLUMN

GROUPS = 128


def batch(hashes, ingest_us=0):
    times = pa.array([ingest_us] * len(hashes), pa.int64())
    return pa.record_batch({KEY_HASH_COLUMN: pa.array(hashes, pa.uint64()), INGEST_TIME_COLUMN: times})


@pytest.fixture
def sample():
    made = RowSample()
    made.group_count = GROUPS
    return made


def test_it_looks_only_when_it_was_asked(sample):
    assert not sample.is_wanted
    sample.want()
    assert sample.is_wanted
    sample.take(batch([1]), 0, 0)
    assert not sample.is_wanted


def test_it_is_asked_now_and_then(sample):
    asked = []
    for _ in range(30):
        sample.want()
        asked.append(sample.is_wanted)
        sample.take(batch([1]), 0, 0)
    assert 5 <= sum(asked) <= 15


def test_a_subtask_in_the_middle_without_key_groups_is_never_asked():
    sample = RowSample()
    sample.want()
    assert not sample.is_wanted


def test_the_hottest_group_is_that_of_the_routing(sample):
    hashes = np.random.default_rng(3).integers(0, 2**64, 1_000, dtype=np.uint64)
    hashes[:600] = hashes[0]
    sample.take(batch(hashes), 0, 0)
    groups = key_groups(hashes, GROUPS)
    group, share = sample.hot_group()
    assert group == groups[0]
    assert share == pytest.approx(np.mean(groups == groups[0]))


def test_what_was_hot_for_long_is_forgotten(sample):
    first, second = np.uint64(1) << np.uint64(40), np.uint64(1) << np.uint64(63)
    for hashes in ([first] * 100,) * 50 + ([second] * 100,) * 50:
        sample.take(batch(hashes), 0, 0)
    group, share = sample.hot_group()
    assert group == key_groups(np.array([second]), GROUPS)[0]
    assert 0.9 < share < 1


def test_nothing_is_told_before_a_sample(sample):
    assert sample.hot_group() == (0, 0.0)
    assert sample.latency_counts() == []


def test_rows_of_a_last_stage_have_an_age(sample):
    sample.is_last = True
    sample.take(batch([1, 2, 3], ingest_us=1_000_000), 1_040_000, 0)
    assert 30 < share_below(sample.latency_counts(), 0.5) <= 50


def test_batches_without_the_columns_pass(sample):
    sample.is_last = True
    sample.take(pa.record_batch({"id": [1]}), 0, 0)
    assert sample.hot_group() == (0, 0.0)
