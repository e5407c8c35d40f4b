"""``python -m benchmarks.slatedb_store``: what state needs of a store, from our RocksDB and from SlateDB in turn.

The figures of design note 0021. SlateDB is no dependency of Weir: ``uv pip install slatedb==0.17.0`` comes first.
"""

from __future__ import annotations

import asyncio
import importlib
import random
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from weir.config.stores import RocksDbConfig
from weir.state.stores.rocksdb import open_store

_GROUPS, _VALUE = 128, b"x" * 100
#: Entries of a call.
_WRITTEN, _READ, _SCANNED = 1_000, 512, 256
_READS = 20_000


def main(
    entries: Annotated[int, typer.Option(min=10_000, help="In the store.")] = 300_000,
    repeat: Annotated[int, typer.Option(min=1, help="Runs; the best counts.")] = 3,
) -> None:
    """Compare entries per second of both stores, on a local disk.

    Example: python -m benchmarks.slatedb_store --entries 100000
    """
    try:
        slatedb = importlib.import_module("slatedb.uniffi._slatedb_uniffi.slatedb")
    except ImportError:
        raise typer.BadParameter("slatedb is not installed: uv pip install slatedb==0.17.0") from None
    rng = random.Random(1)
    keys = [b"%03d/%012d" % (rng.randrange(_GROUPS), number) for number in range(entries)]
    rng.shuffle(keys)
    best: dict[str, list[float]] = {}
    for number in range(repeat):
        typer.echo(f"  run {number + 1} of {repeat}, about half a minute for 300,000 entries", err=True)
        with tempfile.TemporaryDirectory() as directory:
            ours = _rocksdb(Path(directory) / "rocksdb", keys)
            theirs = asyncio.run(_slatedb(slatedb, Path(directory) / "slatedb", keys))
        for name, rate in ours.items():
            best.setdefault(name, [0.0, 0.0])
            best[name] = [max(best[name][0], rate), max(best[name][1], theirs[name])]
    table = Table("entries per second", "RocksDB", "SlateDB", "ratio")
    for name, (mine, other) in best.items():
        table.add_row(name, f"{mine:,.0f}", f"{other:,.0f}", f"{mine / other:.1f}")
    Console().print(table)


class _Watch:
    """Entries per second by name."""

    def __init__(self) -> None:
        self.rates: dict[str, float] = {}
        self._began_s = time.perf_counter()

    def note(self, name: str, entries: int) -> None:
        """So many entries were handled since the latest call."""
        now_s = time.perf_counter()
        self.rates[name] = entries / (now_s - self._began_s)
        self._began_s = time.perf_counter()


def _rocksdb(path: Path, keys: list[bytes]) -> dict[str, float]:
    store = open_store(path, RocksDbConfig(), fresh=True)
    watch = _Watch()
    for at in range(0, len(keys), _WRITTEN):
        store.put_many(keys[at : at + _WRITTEN], [_VALUE] * len(keys[at : at + _WRITTEN]))
    store.flush()
    watch.note("written", len(keys))
    for at in range(0, _READS, _READ):
        assert None not in store.get_many(keys[at : at + _READ])
    watch.note("read", _READS)
    scanned = sum(1 for group in range(_GROUPS) for _ in store.scan_prefix(b"%03d/" % group))
    watch.note("scanned by group", scanned)
    assert scanned == len(keys)
    store.close()
    return watch.rates


async def _slatedb(slatedb: Any, path: Path, keys: list[bytes]) -> dict[str, float]:
    path.mkdir()
    builder = slatedb.DbBuilder(str(path).lstrip("/"), slatedb.ObjectStore.resolve("file:///"))
    store = await builder.build()
    watch = _Watch()
    for at in range(0, len(keys), _WRITTEN):
        batch = slatedb.WriteBatch()
        for key in keys[at : at + _WRITTEN]:
            batch.put(key, _VALUE)
        await store.write(batch)
    await store.flush_with_options(slatedb.FlushOptions(flush_type=slatedb.FlushType.MEM_TABLE))
    watch.note("written", len(keys))
    for at in range(0, _READS, _READ):
        assert None not in await asyncio.gather(*map(store.get, keys[at : at + _READ]))
    watch.note("read", _READS)
    everything = slatedb.KeyRange(start=None, start_inclusive=False, end=None, end_inclusive=False)
    scanned = 0
    for group in range(_GROUPS):
        rows = await store.scan_prefix(b"%03d/" % group, everything)
        while batch := await rows.next_batch(_SCANNED):
            scanned += len(batch)
    watch.note("scanned by group", scanned)
    assert scanned == len(keys)
    await store.shutdown()
    return watch.rates


if __name__ == "__main__":
    typer.run(main)
