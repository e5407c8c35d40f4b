"""The rescale benchmark: its arithmetic, and a run with little state."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.commands import app
from benchmarks.rescale import RescaleOptions, check_strategy
from benchmarks.rescale import run as run_rescale
from benchmarks.rescale_figures import around, check_counts, gap_ms, latencies, recovered_ms
from benchmarks.rescale_input import input_directory, key_groups, key_numbers
from benchmarks.rescale_steady import SteadyOptions
from weir.errors import ConfigError
from weir.keys import hashing as weir_keys

ROOT = Path(__file__).parents[2]
NUMBERS = np.array([1, 2, 3, 1, 1, 3])


def records_of(pairs, arrivals_us=None, latency_us=1000):
    arrivals = np.arange(len(pairs)) if arrivals_us is None else np.asarray(arrivals_us)
    ids, counts = np.array(pairs).T
    return np.stack([ids, counts, arrivals, arrivals - latency_us], axis=1)


RIGHT = [(1, 1), (2, 1), (3, 1), (1, 2), (1, 3), (3, 2)]


@pytest.mark.parametrize(
    ("pairs", "lost", "duplicated"),
    [
        (RIGHT, 0, 0),
        (RIGHT[::-1], 0, 0),
        (RIGHT[:-1], 1, 0),
        ([*RIGHT, (1, 3)], 0, 1),
        # The new owner began at 1 again: an update is lost, another one is there twice.
        ([(1, 1), (2, 1), (3, 1), (1, 2), (1, 1), (3, 2)], 1, 1),
        ([*RIGHT, (1, 4)], 0, 1),
        ([*RIGHT[:-1], (3, 0)], 1, 1),
        ([*RIGHT[:-1], (9, 1)], 1, 1),
    ],
)
def test_every_count_of_every_key_is_needed_once(pairs, lost, duplicated):
    assert check_counts(records_of(pairs), NUMBERS) == {"lost": lost, "duplicated": duplicated}


def test_a_gap_counts_if_a_part_of_it_is_in_the_range():
    arrivals = np.array([0, 1000, 9000, 10_000, 12_000])
    assert gap_ms(arrivals, 2000, 3000) == 8.0
    assert gap_ms(arrivals, 9500, 11_000) == 2.0
    assert gap_ms(arrivals, 0, 500) == 1.0
    assert gap_ms(arrivals[:1], 0, 500) is None


def test_p99_is_back_when_a_whole_second_is():
    arrivals = np.arange(0, 5_000_000, 1000)
    records = records_of([(1, 1)] * len(arrivals), arrivals)
    slow = (arrivals >= 1_000_000) & (arrivals < 2_250_000)
    records[slow, 3] -= 50_000
    assert latencies(records, 0, 1_000_000)["p99_ms"] == 1.0
    assert latencies(records, 1_000_000, 2_000_000)["p99_ms"] == 51.0
    # Ten events of a second may be slower.
    assert recovered_ms(records, 1_000_000, 1.0) == 1300.0
    assert recovered_ms(records, 1_000_000, 0.5) is None


def test_groups_that_move_are_told_from_the_others():
    arrivals = np.arange(0, 4_000_000, 10_000)
    pairs = [(1 + number % 2, 1) for number in range(len(arrivals))]
    # Key 2 gets nothing for half a second.
    keep = [
        not (pair[0] == 2 and 1_500_000 <= at < 2_000_000) for pair, at in zip(pairs, arrivals, strict=True)
    ]
    records = records_of(pairs, arrivals)[keep]
    figures = around(records, np.array([False, False, True]), 0, 1_400_000, 1_500_000, 2_000_000)
    assert figures["moved_groups_gap_ms_max"] == pytest.approx(520)
    assert figures["other_groups_gap_ms_max"] == pytest.approx(20)
    assert figures["output_gap_ms_max"] == pytest.approx(20)
    assert figures["before"]["events"] == 140
    assert figures["until_owned"]["events"] == 10


def test_the_input_begins_with_every_key(tmp_path):
    numbers = key_numbers(100, 2000, "zipf")
    assert sorted(numbers[:100].tolist()) == list(range(1, 101))
    counts = np.sort(np.bincount(numbers[100:], minlength=101))[::-1]
    assert counts.sum() == 2000
    assert counts[0] > 5 * counts[20] > 0
    uniform = np.bincount(key_numbers(100, 20_000, "uniform")[100:], minlength=101)[1:]
    assert 100 < uniform.min() <= uniform.max() < 320
    directory = input_directory(numbers, "test", tmp_path)
    (part,) = directory.iterdir()
    events = [json.loads(line) for line in part.read_text().splitlines()]
    assert [event["id"] for event in events] == numbers.tolist()
    assert events[0]["server_name"] == f"server-{numbers[0]}"


def test_groups_of_keys_are_those_of_the_engine():
    groups = key_groups(50, 128)
    batch = pa.RecordBatch.from_pydict({"server_name": [f"server-{number}" for number in range(51)]})
    hashes = weir_keys.hash_keys(weir_keys.key_bytes(batch, ("server_name",)))
    assert groups.tolist() == weir_keys.key_groups(hashes, 128).tolist()
    assert len(set(groups.tolist())) > 20


def test_an_unknown_strategy_is_named_with_the_known_ones():
    assert check_strategy("hybrid-no-cache") == "hybrid-no-cache"
    with pytest.raises(
        ConfigError, match="--strategy hybrids: there are local, hybrid, hybrid-no-cache, migrate"
    ):
        check_strategy("hybrids")


def test_options_give_the_state_asked_for():
    assert RescaleOptions(state_bytes=1e9, payload_bytes=1000).keys == 1_000_000
    assert RescaleOptions(scale_in=True).parallelism == (2, 1)
    # A quarter of half of the keys, some tens of bytes each.
    assert 125_000 * 30 < SteadyOptions(keys=1_000_000).cache_bytes < 125_000 * 300


@pytest.mark.scenario
@pytest.mark.parametrize(("strategy", "scale_in"), [("local", False), ("migrate", True)])
def test_a_run_with_little_state(tmp_path, strategy, scale_in, forked):
    options = RescaleOptions(
        strategy=strategy,
        state_bytes=1e6,
        rate=4000,
        duration_s=8,
        settle_s=0.2,
        before_s=1,
        scale_in=scale_in,
        data_root=tmp_path,
    )
    document = run_rescale(options, lambda step, done: None).as_json()
    assert (document["lost"], document["duplicated"]) == (0, 0)
    # A machine that does not keep up is given half of the rate.
    assert document["events"] == options.keys + round(document["rate"] * options.duration_s)
    assert document["before"]["events"] > 1000
    assert document["groups_moved"] == 64
    # Half of the payloads, to a tenth.
    assert 400_000 < document["moved_bytes"] < 800_000
    assert document["owned_ms"] <= document["rescale_ms"]
    for figure in ("output_gap_ms_max", "moved_groups_gap_ms_max", "other_groups_gap_ms_max"):
        assert document[figure] > 0


def test_the_command_refuses_an_unknown_strategy(capsys):
    with pytest.raises(SystemExit) as ended:
        app(["rescale", "--strategy", "hybrids"])
    assert ended.value.code == 2
    assert "--strategy hybrids: there are local" in capsys.readouterr().err
