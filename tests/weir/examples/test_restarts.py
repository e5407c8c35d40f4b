"""Sources and sinks of one's own over checkpoints, restarts and savepoints, in one process: rows come once."""

import random
import sqlite3
from contextlib import closing
from functools import partial

import polars as pl
import pytest

import weir
from tests.effort import cases
from weir import testing
from weir.examples.sqlite_sink import TransactionSink


class Shelves(weir.Source):
    """Three splits of fifty numbers, in pieces of another size at each reading, some of them empty; and pauses."""

    def __init__(self, dice):
        self._dice = dice

    def splits(self):
        return [0, 100, 200]

    def read(self, split, position):
        at = position or 0
        while at < 50:
            stop = min(at + self._dice.randrange(9), 50)
            yield [{"id": split + number, "shelf": str(split)} for number in range(at, stop)], stop
            at = stop
            if self._dice.random() < 0.3:
                yield None


def job(dice, directory, parallelism):
    flow = weir.Dataflow("shelves", max_parallelism=8)
    source = weir.UserSource(partial(Shelves, dice), schema={"id": int, "shelf": str}, rate=100)
    rows = flow.source("rows", source, parallelism=parallelism)
    counts = rows.key_by("shelf").count("n", parallelism=parallelism)
    counts.sink("tables", weir.ParquetSink(str(directory / "tables")))
    counts.sink("database", weir.UserSink(partial(TransactionSink, str(directory / "out.db"), "counts")))
    return flow


@pytest.mark.parametrize("seed", range(cases(4)))
def test_rows_come_once_whatever_happens(tmp_path, seed):
    dice = random.Random(seed)
    savepoint = None
    for parallelism in (2, dice.choice([1, 3])):
        with testing.start(job(dice, tmp_path, parallelism), {}, from_savepoint=savepoint) as running:
            for _ in range(8):
                running.advance_time(dice.randrange(150))
                if dice.random() < 0.5:
                    running.checkpoint(dice.choice(["prepared", "complete", "committed"]))
                if dice.random() < 0.4:
                    running.restart()
            if savepoint is None:
                savepoint = str(running.savepoint(tmp_path / "savepoint").path)
                running.stop()
            else:
                running.finish()
    expected = sorted((split + number, number + 1) for split in (0, 100, 200) for number in range(50))
    tables = pl.read_parquet(tmp_path / "tables" / "part-*.parquet")
    assert sorted(zip(tables["id"], tables["n"], strict=True)) == expected
    with closing(sqlite3.connect(tmp_path / "out.db")) as connection:
        assert connection.execute("SELECT id, n FROM counts ORDER BY id").fetchall() == expected
