"""Rows of 16 MB, rows of 1,000 columns, and 10,000 dead letters a second: memory below its bound, nothing lost."""

from __future__ import annotations

import json
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine_run import EngineRun, EngineSetup, run_engine
from benchmarks.results import Bar, BenchmarkError, BenchmarkResult

BARS = (
    Bar("rss_above_bound_bytes_max", "at most", 0),
    Bar("lost", "at most", 0),
    Bar("duplicated", "at most", 0),
    Bar("dead_letters_per_second", "at least", 9_000),
)
SEED = 7
_MIB = 1 << 20
#: A process that has loaded a job and has had its first batches, with what its allocators keep.
_PROCESS_BYTES = 384 * _MIB
#: The defaults that docs/operations.md names, and how often a row, or so many bytes, can be in memory in each place.
_SOURCE_BYTES, _CHANNEL_BYTES, _STEP_BYTES = 4 * _MIB, 8 * _MIB, 8 * _MIB
_SOURCE_COPIES, _WAITING_COPIES, _WIRE_COPIES, _STEP_COPIES = 4, 1, 3, 2
_WORDS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz  ABCDEFGHIJ", dtype=np.uint8)


@dataclass(frozen=True)
class WideRowsOptions:
    """Command-line options."""

    row_bytes: int = 16 * _MIB
    large_rows: int = 30
    columns: int = 1_000
    column_rows: int = 12_000
    dead_letter_rate: float = 10_000
    dead_letters: int = 120_000
    parallelism: int = 2
    task_managers: int = 2


@dataclass(frozen=True)
class _Case:
    """One run: its lines, what must come of each row, and the largest row."""

    name: str
    lines: Iterator[tuple[bytes, tuple[int, int, int]]]
    parameters: Mapping[str, object]
    row_bytes: int
    settings: Mapping[str, object]


def memory_bound_bytes(row_bytes: int, parallelism: int, task_managers: int) -> int:
    """What one task manager of the job may use: each place holds its bound in bytes, or one row that is larger.

    See the table in docs/operations.md.
    """
    sources = -(-parallelism // task_managers)
    in_source = sources * _SOURCE_COPIES * max(_SOURCE_BYTES, row_bytes)
    channel = max(_CHANNEL_BYTES, row_bytes)
    # Of each subtask channels lead to all of the next stage, and as many come in.
    channels = sources * parallelism * (_WAITING_COPIES + _WIRE_COPIES + 1) * channel
    steps = 2 * sources * _STEP_COPIES * max(_STEP_BYTES, row_bytes)
    return _PROCESS_BYTES + in_source + channels + steps


def run(options: WideRowsOptions, report: Callable[[str, float], None]) -> BenchmarkResult:
    """Run each case once.

    Raises:
        BenchmarkError: a row is missing, came twice, or has another content.
        ClusterError: a job did not finish.
    """
    cases = [_large_rows(options), _many_columns(options), _dead_letters(options)]
    figures: dict[str, Any] = {}
    for number, case in enumerate(cases):
        report(f"{case.name}: running", number / len(cases))
        with tempfile.TemporaryDirectory(prefix="weir-wide-rows-") as directory:
            figures[case.name] = _run_case(case, options, Path(directory))
    found = list(figures.values())
    summary = {
        "rss_above_bound_bytes_max": max(one["rss_above_bound_bytes_max"] for one in found),
        "lost": sum(one["lost"] for one in found),
        "duplicated": sum(one["duplicated"] for one in found),
        "events_per_second": {name: one["events_per_second"] for name, one in figures.items()},
        "dead_letters_per_second": figures["dead_letters"]["dead_letters_per_second"],
    }
    return BenchmarkResult("wide_rows", dict(vars(options)), [{**summary, **figures}], BARS)


def _run_case(case: _Case, options: WideRowsOptions, directory: Path) -> dict[str, Any]:
    expected: dict[int, tuple[int, int]] = {}
    with (directory / "rows.jsonl").open("wb") as file:
        for line, (row_id, check, characters) in case.lines:
            file.write(line + b"\n")
            expected[row_id] = (check, characters)
    setup = EngineSetup(
        "benchmarks.wide_rows_job",
        {
            "input": directory / "rows.jsonl",
            "output": directory / "out",
            "parallelism": options.parallelism,
            **case.parameters,
        },
        task_managers=options.task_managers,
        settings=case.settings,
        timeout_s=300,
    )
    engine = run_engine(setup, directory / "cluster")
    letters = [
        json.loads(json.loads(line)["raw"])["id"]
        for path in (directory / "cluster" / "dead_letters").rglob("*.jsonl")
        for line in path.read_bytes().splitlines()
    ]
    return _figures(case, options, engine, expected, _results(directory / "out"), letters)


def _results(directory: Path) -> list[tuple[int, int, int]]:
    rows = (
        json.loads(line) for path in directory.glob("part-*.jsonl") for line in path.read_bytes().splitlines()
    )
    return [(row["id"], row["check"], row["characters"]) for row in rows]


def _figures(
    case: _Case,
    options: WideRowsOptions,
    engine: EngineRun,
    expected: Mapping[int, tuple[int, int]],
    results: list[tuple[int, int, int]],
    letters: list[int],
) -> dict[str, Any]:
    """Figures of a case.

    Raises:
        BenchmarkError: a row is not at the sink, or not put aside, exactly once and with its content.
    """
    wrong = [row_id for row_id, *content in results if expected.get(row_id) != tuple(content)]
    seen = [row_id for row_id, *_ in results] + letters
    lost, duplicated = len(expected.keys() - set(seen)), len(seen) - len(set(seen))
    if wrong or lost or duplicated:
        raise BenchmarkError(
            f"{case.name}: {lost} rows lost, {duplicated} twice, {len(wrong)} with another content"
        )
    bound_bytes = memory_bound_bytes(case.row_bytes, options.parallelism, options.task_managers)
    peak_bytes = max(engine.peak_rss_bytes.values())
    return {
        **engine.figures(),
        "rss_bound_bytes": bound_bytes,
        "rss_above_bound_bytes_max": peak_bytes - bound_bytes,
        "dead_letters_per_second": len(letters) / engine.sustained_s,
        "lost": lost,
        "duplicated": duplicated,
    }


def _large_rows(options: WideRowsOptions) -> _Case:
    rng = np.random.default_rng(SEED)
    texts = _WORDS[rng.integers(0, len(_WORDS), 2 * options.row_bytes)].tobytes()

    def lines() -> Iterator[tuple[bytes, tuple[int, int, int]]]:
        for number in range(options.large_rows * 4):
            # One in four has the full length, the others are short ones between them.
            length = options.row_bytes - 100 if number % 4 == 0 else int(rng.integers(200, 100_000))
            start = int(rng.integers(0, len(texts) - length))
            payload = texts[start : start + length]
            line = b'{"id": %d, "key": "key-%d", "payload": "%s"}' % (number, number, payload)
            yield line, (number, zlib.crc32(payload), length)

    parameters = {"sleep_ms": 20}
    return _Case("row_16_mb", lines(), parameters, options.row_bytes, {})


def _many_columns(options: WideRowsOptions) -> _Case:
    columns = np.arange(options.columns)
    odd, even = columns[columns % 2 == 1], columns[columns % 2 == 0]
    rest = ", ".join(f'"c{c}": %d' if c % 2 else f'"c{c}": "v%d"' for c in columns.tolist())

    def lines() -> Iterator[tuple[bytes, tuple[int, int, int]]]:
        for number in range(options.column_rows):
            values = np.where(columns % 2 == 1, number + columns, number * columns % 1000)
            characters = int(np.char.str_len(values[even].astype(str)).sum()) + len(even) + 3
            line = f'{{"id": {number}, "key": "key-{number % 97}", "payload": "abc", {rest % tuple(values.tolist())}}}'
            yield line.encode(), (number, int(values[odd].sum()), characters)

    parameters = {"columns": options.columns}
    return _Case("columns_1000", lines(), parameters, 32 * options.columns, {})


def _dead_letters(options: WideRowsOptions) -> _Case:
    def lines() -> Iterator[tuple[bytes, tuple[int, int, int]]]:
        for number in range(2 * options.dead_letters):
            payload = b"row %d" % number
            line = b'{"id": %d, "key": "key-%d", "payload": "%s"}' % (number, number % 1000, payload)
            yield line, (number, zlib.crc32(payload), len(payload))

    parameters = {"bad": True, "rate": 2 * options.dead_letter_rate}
    # So many are allowed: every second row is bad.
    settings = {"controlPlane.dead_letter_share_max": 1}
    return _Case("dead_letters", lines(), parameters, 200, settings)
