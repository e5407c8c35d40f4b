"""Windows made of panes against plain Python, whatever the runtime does in between: what all kinds have in common."""

import copy
import math
import statistics
import tempfile
from collections import Counter
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import polars as pl
import pyarrow as pa
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import weir
from weir.author.operator import OperatorContext
from weir.clock import SystemClock
from weir.config.stores import RocksDbConfig
from weir.keys import hashing as weir_keys
from weir.operators.windows.panes.making import make_window_operator
from weir.rows.records import WATERMARK_MAX_MS, WATERMARK_MIN_MS, user_columns, with_times
from weir.rows.side_outputs import SideRows
from weir.specs.window_updates import WindowUpdates
from weir.specs.windows import WindowAggregate, WindowAggregateSpec
from weir.state.stores.memory import MemoryBackend
from weir.state.stores.rocksdb import open_store
from weir.state.tables.opened import StateTables

GROUPS = 4
STATE_ID = 7
KEYS = ["", "a", "b", "long-key-17", "c", "d", "e", "\u00fc"]
SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("v", pa.int64()),
        ("x", pa.float64()),
        ("t", pa.string()),
        ("raw", pa.large_binary()),
    ]
)
AGGREGATES = (
    WindowAggregate("n", "count"),
    WindowAggregate("s", "sum", "v"),
    WindowAggregate("low", "min", "v"),
    WindowAggregate("high", "max", "x"),
    WindowAggregate("mean", "mean", "x"),
    WindowAggregate("odd", "count", None, pl.col("v") % 2 == 1),
    WindowAggregate("variance", "variance", "v", parameters=(1,)),
    WindowAggregate("first", "first", "v"),
    WindowAggregate("last", "last", "x", pl.col("v") > 0),
    WindowAggregate("largest", "largest", "v", parameters=(2,)),
    WindowAggregate("different", "count_distinct", "v"),
    WindowAggregate("different_low", "count_distinct", "v", pl.col("v") < 2),
    WindowAggregate("different_x", "count_distinct", "x"),
    WindowAggregate("about", "approx_distinct", "v", parameters=(0.02,)),
    WindowAggregate("median", "quantile", "v", parameters=(0.5, 0.0005)),
    WindowAggregate("most", "quantile", "v", parameters=(0.9, 0.0005)),
)
TEXTS = (
    WindowAggregate("first_t", "first", "t"),
    WindowAggregate("last_t", "last", "t"),
    WindowAggregate("last_raw", "last", "raw", pl.col("v") > 0),
)
#: What running totals of sliding windows take away again.
SUMS = (AGGREGATES[0], AGGREGATES[1], AGGREGATES[5])
#: Those that have no entries of their own.
PLAIN = AGGREGATES[:10]
#: Codes of texts beside parts, beside plain cells, and alone.
WITH_TEXTS = (*AGGREGATES[8:12], *TEXTS)
PLAIN_TEXTS = (*TEXTS, *AGGREGATES[:3])
WINDOWS = [
    weir.tumbling(10),
    weir.tumbling(10, offset=3),
    weir.sliding(30, 10),
    weir.sliding(20, 5, offset=2),
    weir.cumulative(20, 5),
    weir.cumulative(30, 10, offset=7),
]
TIMES = st.integers(-60, 120)
ROWS = st.lists(
    st.tuples(
        st.sampled_from(KEYS),
        TIMES,
        st.none() | st.integers(-5, 5),
        st.none() | st.sampled_from([0.25, -2, 8.5]),
    ),
    max_size=30,
)


def group_of(key):
    column = weir_keys.KeyColumn.from_list([key.encode()])
    return int(weir_keys.key_groups(weir_keys.hash_keys(column), GROUPS)[0])


GROUP_OF = {key: group_of(key) for key in KEYS}


def batch_of(rows):
    keys, times, values, others = zip(*rows, strict=True)
    columns = [
        pa.array(keys, pa.string()),
        pa.array(values, pa.int64()),
        pa.array(others, pa.float64()),
        pa.array(map(text_of, values), pa.string()),
        pa.array([None if other is None else f"{other}".encode() for other in others], pa.large_binary()),
    ]
    return with_times(pa.record_batch(columns, schema=SCHEMA), np.array(times, np.int64), 0)


class Subtask:
    """An operator with its tables."""

    def __init__(self, index, window, aggregates, updates, backend, groups, cache_bytes, restored):
        self.groups = set(groups)
        self.watermark = WATERMARK_MIN_MS
        self.tables = StateTables(backend, cache_bytes, GROUPS, sorted(groups))
        spec = WindowAggregateSpec(("k",), window, aggregates, SCHEMA, updates)
        self.operator = make_window_operator(spec)
        self.operator.open(
            OperatorContext(
                "job",
                "w",
                1,
                index,
                2,
                GROUPS,
                batch_size=3,
                tables=self.tables.of("w", {name: STATE_ID + n for n, name in enumerate(spec.state_names)}),
                restored=restored,
                clock=SystemClock(),
            )
        )
        self.all_tables = list(self.tables)
        self.table = self.all_tables[0]


def text_of(value):
    """Of a number a text, some of them empty and some long."""
    return None if value is None else "" if value == 0 else "\u00fc" * (40 if value == 3 else 1) + str(value)


def windows_of(window, time_ms):
    """Bounds of all windows that a row belongs to."""
    step, size, offset = window.step_ms, window.size_ms, window.offset_ms
    if window.kind == "cumulative":
        start = time_ms - (time_ms - offset) % size
        return [(start, start + k) for k in range(step, size + 1, step) if start + k > time_ms]
    first = time_ms - (time_ms - offset) % step
    return [(start, start + size) for start in range(first, time_ms - size, -step)]


def result_of(aggregates, key, bounds, rows):
    values = [value for _, _, value, _ in rows if value is not None]
    others = [other for _, _, _, other in rows if other is not None]
    taken = [pair for pair in enumerate(rows) if taken_last(pair[1])]
    latest = max(taken, key=lambda pair: (pair[1][1], pair[0]), default=None)
    timed = [row for row in rows if row[2] is not None]
    last_t = max(enumerate(timed), key=lambda pair: (pair[1][1], pair[0]), default=(0, None))[1]
    found = {
        "first_t": text_of(min(timed, key=lambda row: row[1])[2]) if timed else None,
        "last_t": text_of(last_t[2]) if last_t else None,
        "last_raw": f"{latest[1][3]}".encode() if latest else None,
        "n": len(rows),
        "s": sum(values) if values else None,
        "low": min(values, default=None),
        "high": max(others, default=None),
        "mean": round(sum(others) / len(others), 9) if others else None,
        "odd": sum(value % 2 == 1 for value in values),
        "variance": round(statistics.variance(values), 9) if len(values) > 1 else None,
        # Of equal times the first or the last that came.
        "first": min(rows, key=lambda row: (row[2] is None, row[1]))[2],
        "last": latest[1][3] if latest else None,
        "largest": tuple(sorted(values, reverse=True)[:2]),
        "different": len(set(values)),
        "different_low": len({value for value in values if value < 2}),
        "different_x": len(set(others)),
        # So few that no two have the same register.
        "about": len(set(values)),
        "median": quantile(values, 0.5),
        "most": quantile(values, 0.9),
    }
    return (key, *bounds, *(found[aggregate.output] for aggregate in aggregates))


def quantile(values, q):
    return float(sorted(values)[math.floor(q * (len(values) - 1))]) if values else None


def taken_last(row):
    return row[3] is not None and row[2] is not None and row[2] > 0


def comparable(value):
    """Lists hashable, and what is computed in another order rounded."""
    if isinstance(value, list):
        return tuple(value)
    return round(value, 9) if isinstance(value, float) else value


def with_exact_quantiles(row):
    """Within the stated error the values are whole numbers."""
    return {**row, **{name: float(round(row[name])) for name in ("median", "most") if row.get(name)}}


class WindowMachine(RuleBasedStateMachine):
    """Two subtasks over one store."""

    #: From the event time of a result to the end of its window.
    ends_early = 1

    @initialize(
        window=st.sampled_from(WINDOWS),
        aggregates=st.sampled_from([AGGREGATES, PLAIN, SUMS, WITH_TEXTS, PLAIN_TEXTS]),
        cache_bytes=st.sampled_from([400, 1 << 20]),
        kind=st.sampled_from(["memory", "rocksdb"]),
    )
    def begin(self, window, cache_bytes, kind, aggregates=AGGREGATES):
        self.aggregates = aggregates
        self.window, self.cache_bytes, self.kind = window, cache_bytes, kind
        self.directories = []
        self.backend = self.new_backend()
        self.checkpoints = []
        #: By group: rows that count, and up to where it has fired.
        self.model = {group: ([], WATERMARK_MIN_MS) for group in range(GROUPS)}
        self.late = 0
        self.start([{0, 1}, {2, 3}], {})

    def new_backend(self):
        if self.kind == "memory":
            return MemoryBackend()
        self.directories.append(tempfile.TemporaryDirectory())
        return open_store(Path(self.directories[-1].name) / "store", RocksDbConfig(), fresh=True)

    def start(self, owned, restored):
        self.subtasks = [
            Subtask(
                index,
                self.window,
                self.aggregates,
                self.updates(),
                self.backend,
                groups,
                self.cache_bytes,
                restored,
            )
            for index, groups in enumerate(owned)
        ]

    def is_late(self, time_ms, place):
        return self.last_end(time_ms) <= place

    def last_end(self, time_ms):
        return max(end for _, end in windows_of(self.window, time_ms))

    @rule(rows=ROWS)
    def process(self, rows):
        told = []
        for subtask in self.subtasks:
            mine = [row for row in rows if GROUP_OF[row[0]] in subtask.groups]
            if mine:
                told += list(subtask.operator.process(batch_of(mine)))
        late = sum(self.is_late(row[1], self.model[GROUP_OF[row[0]]][1]) for row in rows)
        sides = [each for each in told if isinstance(each, SideRows)]
        assert sum(side.rows.num_rows for side in sides) == late
        for row in rows:
            kept, place = self.model[GROUP_OF[row[0]]]
            if self.is_late(row[1], place):
                self.late += 1
            else:
                kept.append(row)
        assert sum(subtask.operator.late_rows for subtask in self.subtasks) == self.late
        results = [each for each in told if not isinstance(each, SideRows)]
        self.check(results, self.expected_at_once(rows), may_repeat=self.cache_bytes < 1000)

    def expected_at_once(self, rows):
        """What leaves with the rows that bring it."""
        return []

    def updates(self):
        return WindowUpdates()

    def result_of(self, key, bounds, rows):
        return result_of(self.aggregates, key, bounds, rows)

    def expected(self, groups, watermark):
        """What these groups tell of at a watermark; it becomes their place."""
        found = []
        for group in groups:
            kept, place = self.model[group]
            of_windows = {}
            for row in kept:
                for bounds in windows_of(self.window, row[1]):
                    if place < bounds[1] <= watermark:
                        of_windows.setdefault((row[0], bounds), []).append(row)
            found += [self.result_of(key, bounds, rows) for (key, bounds), rows in of_windows.items()]
            if watermark != WATERMARK_MAX_MS:
                self.model[group] = (kept, max(place, watermark))
        return found

    def check(self, batches, expected, *, may_repeat=False):
        rows = []
        for batch in batches:
            assert batch.num_rows <= 3
            names = user_columns(batch.schema)
            rows += [
                tuple(comparable(row[name]) for name in names)
                for row in map(with_exact_quantiles, batch.to_pylist())
            ]
            assert batch.column("_event_time_ms").to_pylist() == [
                end - self.ends_early for end in batch.column("window_end").to_pylist()
            ]
        if may_repeat:
            # A batch that the cache cannot hold is taken in pieces, and the last result counts.
            rows = {row[:3]: row for row in rows}.values()
        assert Counter(rows) == Counter(expected)

    @rule(which=st.sampled_from([(0,), (1,), (0, 1)]), time_ms=TIMES)
    def watermark(self, which, time_ms):
        for subtask in (self.subtasks[index] for index in which):
            if time_ms > subtask.watermark:
                subtask.watermark = time_ms
                fired = list(subtask.operator.on_watermark(time_ms))
                self.check(fired, self.expected(subtask.groups, time_ms))

    @rule()
    def flush(self):
        for subtask in self.subtasks:
            subtask.tables.flush()
            self.check_store(subtask)

    @rule()
    def flush_bit_by_bit(self):
        for subtask in self.subtasks:
            while not subtask.tables.flush_part(0.5, lambda: True) and not subtask.tables.flush_part(1.0):
                pass

    def check_store(self, subtask):
        """Nothing is left of panes whose last window has fired, but where each group stands."""
        for group in subtask.groups:
            kept, place = self.model[group]
            live = {row[0] for row in kept if self.last_end(row[1]) > place}
            if place != WATERMARK_MIN_MS and not live and subtask.table.first_ms() == 2**63 - 1:
                for number in range(len(subtask.all_tables)):
                    prefix = group.to_bytes(2, "big") + (STATE_ID + number).to_bytes(2, "big")
                    assert len(list(self.backend.scan_prefix(prefix))) <= 1

    @rule(fails=st.booleans())
    def checkpoint(self, fails):
        restored, captures = {}, []
        for index, subtask in enumerate(self.subtasks):
            restored[index] = subtask.operator.snapshot(1)
            captures += subtask.tables.capture()
        for capture in captures:
            if fails:
                capture.abandon()
            else:
                capture.write()
        if not fails:
            self.checkpoints.append(
                (list(self.backend.scan()), restored, copy.deepcopy(self.model), self.late)
            )

    @rule(data=st.data())
    def restore(self, data):
        if not self.checkpoints:
            return
        entries, restored, model, late = data.draw(st.sampled_from(self.checkpoints))
        self.backend.close()
        self.backend = self.new_backend()
        self.backend.write(entries)
        self.model, self.late = copy.deepcopy(model), late
        self.start(
            data.draw(st.sampled_from([[{0, 1}, {2, 3}], [{0, 1, 2, 3}, set()], [{3}, {0, 1, 2}]])), restored
        )

    @rule(group=st.integers(0, GROUPS - 1), rows=ROWS, copies=st.sampled_from(["none", "all", "bad"]))
    def hand_over(self, group, rows, copies):
        source, target = self.subtasks
        if group not in source.groups:
            source, target = target, source
        pairs = list(zip(source.all_tables, target.all_tables, strict=True))
        for old, new in pairs:
            if copies != "none":
                old.flush_groups([group])
                new.take_copy(old.copy_groups([group], 1000, 1 << 20), [group])
        self.process(rows)
        for old, new in pairs:
            if copies == "all" and list(old.good_copies([group])):
                new.take_copy(old.changes_since_copy([group]), [group])
                new.keep_copies([group])
            old.release_groups([group])
            old.clear_groups([group])
            new.adopt_groups([group])
        source.groups.discard(group)
        target.groups.add(group)
        if target.operator.due_us() == 0:
            self.check(list(target.operator.on_time()), self.expected(target.groups, target.watermark))

    @rule()
    def end(self):
        for subtask in self.subtasks:
            self.check(list(subtask.operator.finish()), self.expected(subtask.groups, WATERMARK_MAX_MS))
            places = subtask.table.places_ms.tolist()
            for group in subtask.groups:
                kept, place = self.model[group]
                assert places[group] >= max([self.last_end(row[1]) for row in kept], default=place)
                if self.ends_early == 0:
                    kept = []
                self.model[group] = (kept, places[group])

    def teardown(self):
        if hasattr(self, "backend"):
            self.backend.close()
        for directory in getattr(self, "directories", ()):
            directory.cleanup()
