"""Sessions in the state of programs of before, which wrote an empty entry where a session was over."""

import pyarrow as pa

import weir
from weir.author.operator import OperatorContext
from weir.clock import SystemClock
from weir.keys import hashing as weir_keys
from weir.operators.windows.panes.making import make_window_operator
from weir.specs.windows import WindowAggregate, WindowAggregateSpec
from weir.state import layout
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables
from weir.state.tables.panes.window_entries import NOTHING_MS
from weir.state.tables.timers.time_first import time_bytes

SCHEMA = pa.schema([("k", pa.string())])
GROUP = int(weir_keys.key_groups(weir_keys.hash_keys(weir_keys.KeyColumn.from_list([b"a"])), 4)[0])


def entry(end_ms, key, presence, *cells):
    value = bytes([1, presence]) + b"".join(cell.to_bytes(8, "little") for cell in cells)
    return layout.key_prefix(GROUP, 5) + time_bytes(end_ms) + key, value


def opened(backend, restored):
    tables = StateTables(backend, 1 << 20, 4, range(4))
    spec = WindowAggregateSpec(("k",), weir.session(10), (WindowAggregate("n", "count"),), SCHEMA)
    operator = make_window_operator(spec)
    numbered = tables.of("w", {"": 5})
    operator.open(
        OperatorContext("job", "w", 1, 0, 1, 4, tables=numbered, restored=restored, clock=SystemClock())
    )
    return operator, tables


def told(batches):
    names = ("window_start", "window_end", "n")
    return [tuple(row[name] for name in names) for batch in batches for row in batch.to_pylist()]


def test_an_open_session_that_spans_panes_keeps_its_first_entry():
    backend = MemoryBackend()
    operator, _ = opened(backend, {})
    snapshot = operator.snapshot(1)
    assert snapshot["codec"].pop("sessions") == 2
    # Fired up to 18. The session of 5 and 12 is open, its first entry of a pane that stays: count, first, last.
    place = entry(NOTHING_MS, GROUP.to_bytes(2, "big"), 1, 18, 0, 0)
    backend.write([place, entry(10, b"a", 6, 1, 5, 5), entry(20, b"a", 6, 1, 12, 12)])
    operator, tables = opened(backend, {0: snapshot})
    assert told(operator.on_watermark(19)) == []
    tables.flush()
    # The mark: an entry whose last row is more than a gap before the place is over.
    marked = entry(NOTHING_MS, GROUP.to_bytes(2, "big"), 3, 19, 1, 0)
    assert backend.get_many([marked[0]]) == [marked[1]]
    assert operator.snapshot(1)["codec"]["sessions"] == 2
    assert told(operator.on_watermark(23)) == [(5, 22, 2)]
    assert told(operator.finish()) == []
