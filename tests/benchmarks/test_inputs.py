"""Inputs of benchmarks, and the checks of what came out."""

from __future__ import annotations

import json
import re

import numpy as np
import polars as pl
import pytest

from benchmarks.bad_input import bad_line, good_line, write_mixed
from benchmarks.events_file import event_lines, events_directory
from benchmarks.latency import percentiles, without_warm_up
from benchmarks.overload import rss_growth_bytes
from benchmarks.polars_reference import run_reference
from benchmarks.results import BenchmarkError
from benchmarks.stored_counts import compare_counts, stored_counts
from weir.config.stores import RocksDbConfig
from weir.state.layout import encode_key
from weir.state.stores.rocksdb import open_store
from weir.state.tables.cells.accumulators import encode_values


def test_lines_are_what_json_dumps_makes_of_the_same_event():
    for line in event_lines(np.random.default_rng(1), 1000, 50).to_list():
        event = json.loads(line)
        assert line == json.dumps(event)
        assert list(event) == ["id", "server_name"]
        assert 1 <= event["id"] <= 100
        assert 1 <= int(re.fullmatch(r"server-([1-9]\d*)", event["server_name"])[1]) <= 50


def test_a_directory_is_made_once_and_completely(tmp_path):
    parts = []
    directory = events_directory(
        10, 3, root=tmp_path, on_part=lambda part, count: parts.append((part, count))
    )
    assert parts == [(1, 4), (2, 4), (3, 4), (4, 4)]
    lines = [line for path in sorted(directory.iterdir()) for line in path.read_text().splitlines()]
    assert len(lines) == 10
    assert events_directory(10, 3, root=tmp_path, on_part=lambda *_: pytest.fail("made again")) == directory


def test_an_interrupted_directory_leaves_nothing(tmp_path):
    def stop(part: int, count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        events_directory(10, 3, root=tmp_path, on_part=stop)
    assert list(tmp_path.iterdir()) == []


def test_the_reference_counts_what_passes_the_filter(tmp_path):
    directory = events_directory(1000, 10, root=tmp_path)
    facts = run_reference(directory, tmp_path / "counts.parquet", threads=1)
    expected: dict[str, int] = {}
    for path in directory.iterdir():
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event["id"] % 4:
                expected[event["server_name"]] = expected.get(event["server_name"], 0) + 1
    counts = pl.read_parquet(tmp_path / "counts.parquet")
    assert dict(counts.iter_rows()) == expected
    assert facts["events"] == 1000
    assert facts["kept"] == sum(expected.values())


def counts(**by_key: int) -> pl.DataFrame:
    schema = {"server_name": pl.String, "count": pl.Int64}
    return pl.DataFrame({"server_name": list(by_key), "count": list(by_key.values())}, schema=schema)


def test_differences_of_counts_are_lost_and_duplicated_events():
    difference = compare_counts(counts(a=5, b=2, c=1), counts(a=3, b=4, d=7))
    assert (difference.lost, difference.duplicated) == (3, 9)
    with pytest.raises(BenchmarkError, match="3 events lost, 9 duplicated"):
        difference.check("counts")
    compare_counts(counts(a=1), counts(a=1)).check("counts")


def test_a_key_in_two_stores_is_an_error():
    with pytest.raises(BenchmarkError, match="two task managers"):
        compare_counts(counts(a=2), pl.concat([counts(a=1), counts(a=1)]))


def test_counts_are_read_from_all_stores(tmp_path):
    for name, key, count in (("one", b"server-1", 7), ("two", b"server-2", 9)):
        store = open_store(tmp_path / name, RocksDbConfig(), fresh=True)
        value = encode_values(np.array([[count]]), np.array([[1]], dtype=np.uint8))
        store.put_many([encode_key(3, 0, key)], [value])
        store.close()
    assert dict(stored_counts(tmp_path).iter_rows()) == {"server-1": 7, "server-2": 9}


def test_bad_lines_are_bad_and_good_lines_are_good():
    rng = np.random.default_rng(3)
    for _ in range(500):
        assert not is_event(bad_line(rng))
        assert is_event(good_line(rng, 10))


def is_event(line: bytes) -> bool:
    """A plain and slow reader of our own."""
    assert b"\n" not in line
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return False
    if not isinstance(event, dict):
        return False
    number, name = event.get("id"), event.get("server_name")
    return type(number) is int and -(2**63) <= number < 2**63 and isinstance(name, str)


def test_positions_of_bad_lines_are_their_byte_offsets(tmp_path):
    expected, positions = write_mixed(tmp_path / "in", 50, 10, 5, 1000)
    found, kept = set(), 0
    for path in (tmp_path / "in").iterdir():
        offset = 0
        for line in path.read_bytes().splitlines(keepends=True):
            body = line.rstrip(b"\n")
            if is_event(body):
                kept += json.loads(body)["id"] % 4 != 0
            offset += len(line)
        data = path.read_bytes()
        starts = [0, *(at + 1 for at, byte in enumerate(data) if byte == 10)][:-1]
        for start in starts:
            if not is_event(data[start : data.index(b"\n", start)]):
                found.add((str(path), start))
    assert found == positions
    assert len(positions) == 10
    assert expected["count"].sum() == kept


def test_the_first_second_is_cut_by_scheduled_time():
    latencies = pl.DataFrame({"arrival_ms": [1005, 1990, 2004, 2010], "latency_ms": [5.0, 1.0, 900.0, 4.0]})
    assert without_warm_up(latencies)["latency_ms"].to_list() == [4.0]
    assert percentiles(latencies) == {"p50_ms": 4.0, "p99_ms": 900.0, "max_ms": 900.0}


def test_growth_of_memory_is_taken_after_the_warm_up():
    samples = [(0.0, {"a": 10, "b": 1}), (5.0, {"a": 50, "b": 4}), (6.0, {"a": 40, "b": 9})]
    assert rss_growth_bytes(samples, 4.0) == {"a": 10, "b": 5}
    assert rss_growth_bytes(samples, 99.0) == {"a": 0, "b": 0}
