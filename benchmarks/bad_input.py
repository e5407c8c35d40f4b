"""Fuzzed lines among good ones: every good one is counted, every bad one is a dead letter, by its position."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.engine_run import EngineRun, EngineSetup, run_engine
from benchmarks.results import Bar, BenchmarkError, BenchmarkResult
from benchmarks.stored_counts import compare_counts, stored_counts

BARS = (Bar("lost", "at most", 0), Bar("duplicated", "at most", 0), Bar("bad_missed", "at most", 0))
_LONG_LINE_BYTES = 50_000_000
_NEST_DEPTH_MAX = 2000
_FILES = 4


def bad_line(rng: np.random.Generator) -> bytes:
    """One line, without its end, that no reader of ``{"id": integer, "server_name": text}`` may take."""
    number = int(rng.integers(1, 1000))
    match int(rng.integers(0, 12)):
        case 0:
            return b"\x00" + rng.integers(0, 256, number, dtype=np.uint8).tobytes().replace(b"\n", b"\xff")
        case 1:
            return b'{"id": %d, "server_name": "server-\xe2\x82"}' % number
        case 2:
            return b'{"id": {"id": %d}, "server_name": "server-1"}' % number
        case 3:
            return b"[" * int(rng.integers(1, _NEST_DEPTH_MAX))
        case 4:
            return b'{"id": "%d", "server_name": "server-1"}' % number
        case 5:
            return b'{"id": %d.5, "server_name": "server-1"}' % number
        case 6:
            return b'{"id": %d, "server_name": %d}' % (number, number)
        case 7:
            return b'{"id": null, "server_name": "server-%d"}' % number
        case 8:
            return b'{"server_name": "server-%d"}' % number
        case 9:
            whole = b'{"id": %d, "server_name": "server-%d"}' % (number, number)
            return whole[: int(rng.integers(1, len(whole)))]
        case 10:
            return b'{"id": 99999999999999999999%d, "server_name": "server-1"}' % number
        case _:
            return b'{"id": %d, "server_name": "server-1"} trailing' % number


def good_line(rng: np.random.Generator, keys: int) -> bytes:
    """One line, without its end, in one of many shapes that JSON allows."""
    event = {"id": int(rng.integers(1, 101)), "server_name": f"server-{rng.integers(1, keys + 1)}"}
    match int(rng.integers(0, 8)):
        case 0:
            return json.dumps({"server_name": event["server_name"], "id": event["id"]}).encode()
        case 1:
            return json.dumps({**event, "more": [1, {"deep": [None, "}"]}]}).encode()
        case 2:
            return json.dumps({**event, "server_name": f'größer "{event["server_name"]}" \u20ac'}).encode()
        case 3:
            return json.dumps(event, separators=(",", ":")).encode() + b" \r"
        case _:
            return json.dumps(event).encode()


def write_mixed(
    directory: Path, good: int, bad: int, keys: int, long_line_bytes: int
) -> tuple[pl.DataFrame, set[tuple[str, int]]]:
    """Write files of good and bad lines in random order, one bad line very long.

    Returns:
        Expected counts (``server_name``, ``count``) and the (file, byte offset) of every bad line.
    """
    rng = np.random.default_rng(7)
    is_bad = rng.permutation(np.arange(good + bad) < bad)
    long_at = int(np.flatnonzero(is_bad)[bad // 2])
    counts: Counter[str] = Counter()
    positions = set()
    directory.mkdir(parents=True)
    for part, rows in enumerate(np.array_split(np.arange(good + bad), _FILES)):
        path = directory / f"part-{part}.jsonl"
        with path.open("wb") as file:
            for row in rows.tolist():
                if is_bad[row]:
                    positions.add((str(path), file.tell()))
                    line = b'{"id": 1, "pad": "' + b"x" * long_line_bytes if row == long_at else bad_line(rng)
                else:
                    line = good_line(rng, keys)
                    event = json.loads(line)
                    counts[event["server_name"]] += event["id"] % 4 != 0
                file.write(line + b"\n")
    kept = {name: count for name, count in counts.items() if count}
    expected = {"server_name": list(kept), "count": list(kept.values())}
    return pl.DataFrame(expected, schema={"server_name": pl.String, "count": pl.Int64}), positions


def run(
    report: Callable[[str, float], None],
    *,
    good: int = 100_000,
    bad: int = 10_000,
    keys: int = 1000,
    long_line_bytes: int = _LONG_LINE_BYTES,
) -> BenchmarkResult:
    """Run it once.

    Raises:
        BenchmarkError: a good event is not counted, or a bad one is not in the dead letters.
        ClusterError: the job did not finish.
    """
    with tempfile.TemporaryDirectory(prefix="weir-bad-input-") as name:
        directory = Path(name)
        report("writing good and bad lines", 0.0)
        expected, positions = write_mixed(directory / "input", good, bad, keys, long_line_bytes)
        setup = EngineSetup("jobs.throughput", {"input": directory / "input", "parallelism": 2})
        report("running the job", 0.5)
        engine = run_engine(setup, directory / "cluster")
        difference = compare_counts(expected, stored_counts(directory / "cluster"))
        rejected = dead_letter_positions(directory / "cluster" / "dead_letters")
    difference.check("counts of good events")
    _check(engine, good, positions, rejected)
    figures = {
        **engine.figures(),
        "good": engine.events_in,
        "bad": len(rejected),
        "bad_missed": len(positions - set(rejected)),
        "lost": difference.lost,
        "duplicated": difference.duplicated,
    }
    config = {"good": good, "bad": bad, "keys": keys, "long_line_bytes": long_line_bytes, "parallelism": 2}
    return BenchmarkResult("bad_input", config, [figures], BARS)


def dead_letter_positions(directory: Path) -> list[tuple[str, int]]:
    """(file, byte offset) of every dead letter; sorted, repeated ones kept."""
    letters = [
        json.loads(line) for path in directory.rglob("*.jsonl") for line in path.read_bytes().splitlines()
    ]
    return sorted((letter["source"], letter["position"]) for letter in letters)


def _check(
    engine: EngineRun, good: int, positions: set[tuple[str, int]], rejected: list[tuple[str, int]]
) -> None:
    if engine.events_in != good:
        raise BenchmarkError(f"{engine.events_in} good events read, {good} expected")
    if set(rejected) != positions or len(rejected) != len(positions):
        missing, wrong = positions - set(rejected), set(rejected) - positions
        raise BenchmarkError(
            f"{len(positions)} bad lines, {len(rejected)} dead letters; {len(missing)} without one "
            f"({sorted(missing)[:3]}), {len(wrong)} at other places ({sorted(wrong)[:3]})"
        )
