"""What windows cost: time per event and state of sliding, session and tumbling windows over one stream of bids.

One subtask in this process with a RocksDB store, CPU time: the operator, its table, whose entries all stay in cache,
the results, which are dropped, and the flush of changed state every second of event time, as for a checkpoint. Event
time goes on as fast as ``events_per_s`` says; a watermark comes every second of it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import weir
from benchmarks.results import Bar, BenchmarkResult
from weir.author.operator import OperatorContext
from weir.config.stores import RocksDbConfig
from weir.keys import hashing as weir_keys
from weir.operators.windows.panes.making import make_window_operator
from weir.rows.records import KEY_HASH_COLUMN, with_times
from weir.specs.window_kinds import Window
from weir.specs.windows import WindowAggregate, WindowAggregateSpec
from weir.state.stores.rocksdb import open_store
from weir.state.tables.opened import StateTables

_SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.int64())])
_BATCH_ROWS = 32_768
_SUMS = (WindowAggregate("n", "count"), WindowAggregate("total", "sum", "value"))
_EXTREMES = (WindowAggregate("n", "count"), WindowAggregate("highest", "max", "value"))
_WINDOWS = {
    "tumbling 1 h": weir.tumbling("1h"),
    "sliding 1 h by 1 s": weir.sliding("1h", "1s"),
    # As many results as the sliding window has.
    "tumbling 1 s": weir.tumbling("1s"),
    "tumbling 10 s": weir.tumbling("10s"),
    "sliding 10 s by 2 s": weir.sliding("10s", "2s"),
    "sessions 10 s": weir.session("10s"),
}
#: Of these a window cannot be made from the one before by adding and subtracting.
_OF_EXTREMES = {"highest, sliding 10 s by 2 s": weir.sliding("10s", "2s")}
#: A sliding window of 1 h by 1 s, as multiples of a tumbling window of 1 h; time with results and flushes.
BARS = (
    Bar("sliding_to_tumbling_us_per_event", "at most", 2),
    Bar("sliding_to_tumbling_state", "at most", 2),
    Bar("sliding_to_tumbling_cache", "at most", 2),
)


@dataclass(frozen=True)
class WindowFigures:
    """Of one kind of window."""

    window: str
    events: int
    keys: int
    results: int
    #: CPU of the process for one event, results included.
    us_per_event: float
    #: CPU of writing the changed state down every second of event time, as for a checkpoint, for one event; not above.
    us_per_event_flushed: float
    #: The same without the time in which windows fired.
    us_per_event_taken: float
    #: The time in which windows fired, for one result.
    us_per_result: float
    #: Largest number of bytes of the state's cache at a watermark.
    cache_bytes_max: int
    #: Beside it, what sliding windows have to make the next window from the one before.
    totals_bytes_max: int
    #: Keys and values in the store, when the last event is in it: what a checkpoint has and a rescale moves.
    state_bytes: int

    @property
    def us_per_event_in_all(self) -> float:
        """With results and flushes."""
        return self.us_per_event + self.us_per_event_flushed


def measure_all(events: int, keys: int, events_per_s: int) -> Iterator[WindowFigures]:
    """Measure each kind, one after the other."""
    for name, window in _WINDOWS.items():
        yield measure(name, window, events, keys, events_per_s)
    for name, window in _OF_EXTREMES.items():
        yield measure(name, window, events, keys, events_per_s, _EXTREMES)


def measure(
    name: str,
    window: Window,
    events: int,
    keys: int,
    events_per_s: int,
    aggregates: tuple[WindowAggregate, ...] = _SUMS,
) -> WindowFigures:
    """Feed one kind of window with ``events`` rows of ``keys`` keys at random."""
    operator = make_window_operator(WindowAggregateSpec(("key",), window, aggregates, _SCHEMA))
    with tempfile.TemporaryDirectory() as directory:
        store = open_store(Path(directory) / "store", RocksDbConfig(), fresh=True)
        tables = StateTables(store, 1 << 30, 128)
        operator.open(OperatorContext("bench", "w", 1, 0, 1, tables=tables.of("w", {"": 1})))
        fired_s = taken_s = flushed_s = 0.0
        results = cache_bytes = totals_bytes = fired_to_s = 0
        for batch, until_s in _batches(events, keys, events_per_s):
            began_s = time.process_time()
            list(operator.process(batch))
            taken_s += time.process_time() - began_s
            while fired_to_s < until_s:
                fired_to_s += 1
                began_s = time.process_time()
                results += sum(each.num_rows for each in operator.on_watermark(fired_to_s * 1000))
                fired_s += time.process_time() - began_s
                began_s = time.process_time()
                tables.flush()
                flushed_s += time.process_time() - began_s
                cache_bytes = max(cache_bytes, tables.stats().memory_bytes)
                totals_bytes = max(totals_bytes, getattr(operator, "totals_bytes", 0))
        tables.flush()
        state_bytes = sum(len(key) + len(value) for key, value in store.scan())
        operator.close()
        tables.close()
        store.close()
    return WindowFigures(
        name,
        events,
        keys,
        results,
        (fired_s + taken_s) / events * 1e6,
        flushed_s / events * 1e6,
        taken_s / events * 1e6,
        fired_s / max(results, 1) * 1e6,
        cache_bytes,
        totals_bytes,
        state_bytes,
    )


def _batches(events: int, keys: int, events_per_s: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Batches as they come over a HASH exchange, and the whole seconds of event time that are over after each."""
    random = np.random.default_rng(5)
    for start in range(0, events, _BATCH_ROWS):
        rows = min(_BATCH_ROWS, events - start)
        arrays = [pa.array(random.integers(0, keys, rows)), pa.array(random.integers(0, 1000, rows))]
        times_ms = (start + np.arange(rows)) * 1000 // events_per_s
        batch = with_times(pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA), times_ms, 0)
        hashes = weir_keys.hash_keys(weir_keys.key_bytes(batch, ("key",)))
        field = pa.field(KEY_HASH_COLUMN, pa.uint64(), nullable=False)
        yield batch.append_column(field, pa.array(hashes)), int(times_ms[-1]) // 1000


def run(events: int, keys: int, events_per_s: int) -> dict[str, Any]:
    """All kinds, as the JSON file has them."""
    measured = {each.window: each for each in measure_all(events, keys, events_per_s)}
    config = {"events": events, "keys": keys, "events_per_s": events_per_s}
    tumbling, sliding = measured["tumbling 1 h"], measured["sliding 1 h by 1 s"]
    figures = {
        "sliding_to_tumbling_us_per_event": sliding.us_per_event_in_all / tumbling.us_per_event_in_all,
        "sliding_to_tumbling_state": sliding.state_bytes / tumbling.state_bytes,
        "sliding_to_tumbling_cache": sliding.cache_bytes_max / tumbling.cache_bytes_max,
        "windows": {name: asdict(each) for name, each in measured.items()},
    }
    return BenchmarkResult("windows", config, [figures], BARS).as_json()
