"""All file sinks, at every kind of place, in random runs with crashes at every step: each row once, and in order."""

from __future__ import annotations

import contextlib
import json
import random

import polars as pl
import pyarrow as pa
import pytest
from pyarrow import fs

import weir
from tests.effort import cases
from weir.author.operator import OperatorContext
from weir.errors import InputError
from weir.operators.registry import create_operator
from weir.operators.sinks import part_files, places, rolled_writing, row_logs
from weir.rows.records import with_system_columns
from weir.testing.manual_clock import ManualClock

READERS = {
    weir.JsonLinesSink: (pl.read_ndjson, "jsonl"),
    weir.CsvSink: (pl.read_csv, "csv"),
    weir.ParquetSink: (lambda path: pl.read_parquet(path, hive_partitioning=False), "parquet"),
}
ROLLED = {"roll_ms": 5_000}
PARTITIONED = {"partition_by": ["p"], "roll_bytes": 2_000}
DELTA = [(weir.DeltaSink, {}), (weir.DeltaSink, PARTITIONED)]
KINDS = [(sink, settings) for sink in READERS for settings in ({}, ROLLED, PARTITIONED)] + DELTA


def batch(*ids):
    rows = {
        "id": pa.array(ids, pa.int64()),
        "p": pa.array([f"a/{n % 3}" if n % 5 else None for n in ids], pa.string()),
    }
    return with_system_columns(pa.record_batch(rows), 1, 2)


def opened(spec, index=0, *, generation=1, restored=None, indices=(0,), clock=None):
    sink = create_operator(spec)
    sink.open(
        OperatorContext(
            "job",
            "out",
            1,
            index,
            len(indices),
            generation=generation,
            restored=restored or {},
            subtask_indices=indices,
            clock=clock or ManualClock(0),
            schema=batch(1).select(["id", "p"]).schema,
        )
    )
    return sink


def snapshot(sink, checkpoint):
    """As it comes back from a manifest."""
    return json.loads(json.dumps(sink.snapshot(checkpoint)))


def parts(directory):
    return sorted(path for path in directory.rglob("part-*") if path.is_file())


def ids(spec, directory):
    """By part, in the order of names; of a Delta table, all together."""
    if isinstance(spec, weir.DeltaSink):
        found = pl.read_delta(str(directory))
        return {f"{p}": found.filter(pl.col("p").eq_missing(p))["id"].to_list() for p in found["p"].unique()}
    read, suffix = READERS[type(spec)]
    return {
        str(path.relative_to(directory)): read(path)["id"].to_list()
        for path in parts(directory)
        if path.name.endswith(f".{suffix}")
    }


def hidden(directory):
    return sorted(path.name for path in directory.rglob(".*"))


class Crash(OSError):
    """The process died here."""


class CrashingPlace:
    """Calls a place, and dies at one of its steps: before it, or after it."""

    def __init__(self, place):
        self._place = place
        self.steps_left = None
        self.dies_after = False
        self.streams = []

    def __getattr__(self, name):
        value = getattr(self._place, name)
        if name not in ("create", "seal", "publish", "settle", "remove"):
            return value

        def call(*arguments):
            if self.steps_left is not None:
                self.steps_left -= 1
                if self.steps_left < 0 and not self.dies_after:
                    raise Crash(name)
            result = value(*arguments)
            if name == "create":
                self.streams.append(result)
            if self.steps_left is not None and self.steps_left < 0:
                raise Crash(name)
            return result

        return call


@pytest.mark.parametrize("run", range(cases(1)))
@pytest.mark.parametrize(("sink", "settings"), KINDS)
def test_each_row_once_and_in_order_whatever_happens(tmp_path, monkeypatch, sink, settings, run):
    """Late commits, commits that never come, rescales, deaths at every step of the place, and sleepers behind."""
    # Of each sink some kinds are at a remote place, and not rescaled.
    seed = run + KINDS.index((sink, settings))
    is_remote = seed % 2 == 1
    random_ = random.Random(f"{seed}{sink.__name__}{settings}{is_remote}")
    monkeypatch.setattr(rolled_writing, "OPEN_FILES_MAX", 2)
    monkeypatch.setattr(rolled_writing, "CHUNK_BYTES", 500)
    monkeypatch.setattr(row_logs, "COLLECTED_BYTES", 100)
    made = []

    def open_place(path):
        place = places.ArrowPlace(fs.LocalFileSystem(), path, path) if is_remote else places.open_place(path)
        made.append(CrashingPlace(place))
        return made[-1]

    monkeypatch.setattr(part_files, "open_place", open_place)
    spec = sink(str(tmp_path), **settings)
    clock = ManualClock(0)
    job = _Run(spec, clock, made, random_, rescales=seed % 2 == 0)
    for _ in range(50):
        clock.advance_ms(random_.choice([10, 1000, 3000]))
        job.step()
    job.end()
    for place in made:
        for stream in place.streams:
            stream.close()
    found = ids(spec, tmp_path)
    assert sorted(number for numbers in found.values() for number in numbers) == list(range(job.next_row))
    # The rows of a subtask that is gone may be in a file of another's.
    is_delta = sink is weir.DeltaSink
    assert job.rescales or is_delta or all(numbers == sorted(numbers) for numbers in found.values())
    if settings == PARTITIONED and not is_delta:
        for name, numbers in found.items():
            folder = {
                f"p=a%2F{number % 3}" if number % 5 else "p=__HIVE_DEFAULT_PARTITION__" for number in numbers
            }
            assert {name.partition("/")[0]} == folder
    assert hidden(tmp_path) == []


class _Run:
    """A job of some subtasks that share the rows; only what a manifest holds survives."""

    def __init__(self, spec, clock, places_, random_, *, rescales):
        self.rescales = rescales
        self.spec, self.clock, self.places, self.random = spec, clock, places_, random_
        self.generation, self.checkpoint, self.next_row = 1, 0, 0
        self.indices = (0, 1)
        #: Snapshots and the first row that comes again, of the last complete checkpoint.
        self.manifest = ({}, 0)
        self.zombies = []
        self._deploy()

    def _deploy(self):
        while True:
            first = len(self.places)
            self.sinks = {}
            try:
                for index in self.indices:
                    restored, generation = self.manifest[0], self.generation
                    self.sinks[index] = opened(
                        self.spec,
                        index,
                        generation=generation,
                        restored=restored,
                        indices=self.indices,
                        clock=self.clock,
                    )
                self.deployed = self.places[first:]
                return
            except InputError:
                self.zombies += self.sinks.values()
                self.generation += 1

    def step(self):
        for place in self.deployed:
            place.steps_left = self.random.randrange(8) if self.random.random() < 0.1 else None
            place.dies_after = self.random.random() < 0.5
        try:
            self._act()
        except InputError:
            self._restart()

    def _act(self):
        event = self.random.random()
        if event < 0.6:
            for _ in range(self.random.randrange(1, 5)):
                sink = self.random.choice(list(self.sinks.values()))
                count = self.random.randrange(1, 30)
                rows = range(self.next_row, self.next_row + count)
                self.next_row += count
                sink.process(batch(*rows))
                sink.flush()
        elif event < 0.9:
            self.checkpoint += 1
            taken = {index: snapshot(sink, self.checkpoint) for index, sink in self.sinks.items()}
            if self.random.random() < 0.2:
                return
            self.manifest = (taken, self.next_row)
            for sink in self.sinks.values():
                if self.random.random() < 0.8:
                    sink.commit(self.checkpoint)
        elif self.manifest[0]:
            self._restart()

    def _restart(self):
        if not self.manifest[0]:
            # Nothing is visible: the job starts anew.
            for sink in self.sinks.values():
                with contextlib.suppress(InputError):
                    sink.close()
            self.next_row = 0
            for place in self.places:
                place.steps_left = None
            self._deploy()
            return
        sleepers = list(self.sinks.values())
        self.zombies += sleepers
        self.generation += 1
        self.next_row = self.manifest[1]
        if self.rescales:
            self.indices = self.random.choice([(0, 1), (0,), (1, 2), (0, 1, 2)])
        self._deploy()
        for zombie in sleepers:
            with contextlib.suppress(InputError):
                zombie.process(batch(-1))
                zombie.snapshot(self.checkpoint + 1000)
        for zombie in self.zombies:
            with contextlib.suppress(InputError):
                zombie.close()

    def end(self):
        for place in self.places:
            place.steps_left = None
        # What sleepers have left goes with the next start.
        if self.manifest[0]:
            self._restart()
        for sink in self.sinks.values():
            sink.finish()
            sink.snapshot(0)
        for sink in self.sinks.values():
            sink.close()
            sink.commit(0)
        if self.zombies:
            self.generation += 1
            opened(
                self.spec,
                generation=self.generation,
                restored={0: snapshot(self.sinks[min(self.indices)], 0)},
            )
