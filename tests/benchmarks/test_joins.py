"""The join benchmark: its input, and what counts as lost."""

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.join_input import input_directory, occurrences, order_numbers
from benchmarks.join_job import check_payload, payloads
from benchmarks.joins import JoinOptions, check_parts, no_pair_lost
from benchmarks.results import BenchmarkError
from weir.errors import ConfigError


def test_an_order_begins_with_its_first_event():
    numbers = order_numbers(50, 400)
    assert sorted(numbers[:50]) == list(range(1, 51))
    counts = occurrences(numbers)
    assert (counts[:50] == 1).all()
    new = numbers[50::20]
    assert new.tolist() == list(range(51, 71))
    assert (counts[50::20] == 1).all()
    assert int((counts == 1).sum()) == int(numbers.max()) == 70
    assert occurrences(np.array([2, 1, 2, 2, 1])).tolist() == [1, 1, 2, 3, 2]


def test_each_further_event_makes_one_pair():
    numbers = np.array([2, 1, 2, 2, 1])
    pairs = np.array([(1, 2), (2, 2), (2, 3)])
    records = np.concatenate([pairs, np.zeros((3, 2), dtype=np.int64)], axis=1)
    assert no_pair_lost(records, numbers) == {"lost": 0, "duplicated": 0}
    for wrong in (records[:2], np.concatenate([records, records[:1]])):
        with pytest.raises(BenchmarkError):
            no_pair_lost(wrong, numbers)


def test_a_payload_of_another_key_counts_as_lost(tmp_path):
    names = ["server-3", "server-4"]
    first, second = payloads(np.array([3, 4]), names, 32)
    assert (len(first), len(second), first.endswith(b"server-3")) == (32, 32, True)
    batch = pa.table(
        {"server_name": names * 2, "id": [3, 4, 3, 4], "n": [2] * 4, "payload": [first, second, second, b""]}
    )
    assert check_payload(batch.to_batches()[0]).column("id").to_pylist() == [3, 4, 0, 4]


def test_lines_are_made_once(tmp_path):
    made = input_directory(np.array([1, 2, 1]), 2.0, "few", tmp_path)
    (part,) = made.iterdir()
    assert part.read_text().splitlines()[2] == '{"id": 1, "server_name": "server-1", "n": 2, "at": 1000}'
    assert input_directory(np.array([7]), 2.0, "few", tmp_path) == made


def test_parts_are_known():
    assert JoinOptions(state_bytes=2048, payload_bytes=1024).orders == 2
    with pytest.raises(ConfigError, match="--only speed: there are rescale, recovery, throughput"):
        check_parts(["speed"])
