"""Windows made of panes against plain Python, whatever the runtime does in between."""

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
from tests.weir.model_tests import model_test
from weir import keys as weir_keys
from weir.clock import SystemClock
from weir.operators.base import OperatorContext
from weir.operators.windows import closing_sessions, early_sessions
from weir.operators.windows.making import make_window_operator
from weir.records import WATERMARK_MAX_MS, WATERMARK_MIN_MS, user_columns, with_times
from weir.side_outputs import SideRows
from weir.specs.window_updates import Trigger, WindowUpdates
from weir.specs.windows import WindowAggregate, WindowAggregateSpec
from weir.state.stores.memory import MemoryBackend
from weir.state.stores.rocksdb import open_store
from weir.state.stores.rocksdb_settings import RocksDbSettings
from weir.state.tables import packed_panes, window_table
from weir.state.tables.opened import StateTables

GROUPS = 4
STATE_ID = 7
KEYS = ["", "a", "b", "long-key-17", "c", "d", "e", "\u00fc"]
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("x", pa.float64())])
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
#: What running totals of sliding windows take away again.
SUMS = (AGGREGATES[0], AGGREGATES[1], AGGREGATES[5])
#: Those that have no entries of their own.
PLAIN = AGGREGATES[:10]
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
    columns = [pa.array(keys, pa.string()), pa.array(values, pa.int64()), pa.array(others, pa.float64())]
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
    found = {
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
        aggregates=st.sampled_from([AGGREGATES, PLAIN, SUMS]),
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
        return open_store(Path(self.directories[-1].name) / "store", RocksDbSettings(), fresh=True)

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


class LongWindowMachine(WindowMachine):
    """Windows of many panes, of which time passes one after the other, so that panes are packed."""

    @initialize(
        window=st.sampled_from(
            [weir.sliding(40, 10), weir.sliding(60, 5, offset=2), weir.cumulative(80, 10)]
        ),
        aggregates=st.sampled_from([PLAIN, SUMS]),
        cache_bytes=st.sampled_from([400, 20_000, 1 << 20]),
        referring_max=st.sampled_from([1, 64]),
    )
    def begin(self, window, cache_bytes, aggregates, referring_max):
        # Small panes, too.
        window_table.PACKED_ENTRIES_MIN, self.packed_from = 1, window_table.PACKED_ENTRIES_MIN
        packed_panes.REFERRING_MAX, self.referring_max = referring_max, packed_panes.REFERRING_MAX
        self.now_ms = -60
        super().begin(window, cache_bytes, "memory", aggregates)

    @rule(
        rows=ROWS.filter(len),
        late=st.sampled_from([0, 0, 0, 30]),
        checkpoints=st.booleans(),
        panes=st.integers(1, 6),
    )
    def pass_panes(self, rows, late, checkpoints, panes):
        # Of the same keys, so that later panes refer to earlier ones, also when these are over.
        for _ in range(panes):
            self.process([(key, self.now_ms + at % 10 - late, *rest) for key, at, *rest in rows])
            self.now_ms += 10
            if checkpoints:
                self.flush()
            self.watermark((0, 1), self.now_ms)

    def teardown(self):
        window_table.PACKED_ENTRIES_MIN = getattr(self, "packed_from", window_table.PACKED_ENTRIES_MIN)
        packed_panes.REFERRING_MAX = getattr(self, "referring_max", packed_panes.REFERRING_MAX)
        super().teardown()


class LatenessMachine(WindowMachine):
    """Windows that take late rows, and tell their results again for them."""

    @initialize(
        window=st.sampled_from(WINDOWS),
        aggregates=st.sampled_from([AGGREGATES, SUMS]),
        lateness=st.sampled_from([1, 10, 35]),
        cache_bytes=st.sampled_from([400, 1 << 20]),
        kind=st.sampled_from(["memory", "rocksdb"]),
        packed_from=st.sampled_from([1, window_table.PACKED_ENTRIES_MIN]),
    )
    def begin(self, window, cache_bytes, kind, aggregates, lateness, packed_from):
        self.lateness = lateness
        self.packed_from, window_table.PACKED_ENTRIES_MIN = window_table.PACKED_ENTRIES_MIN, packed_from
        super().begin(window, cache_bytes, kind, aggregates)

    def teardown(self):
        window_table.PACKED_ENTRIES_MIN = getattr(self, "packed_from", window_table.PACKED_ENTRIES_MIN)
        super().teardown()

    def updates(self):
        return WindowUpdates(self.lateness)

    def last_end(self, time_ms):
        return super().last_end(time_ms) + self.lateness

    def told_again(self, group, row):
        """The windows of a row that have fired and are told again."""
        place = self.model[group][1]
        ends = ((bounds, bounds[1]) for bounds in windows_of(self.window, row[1]))
        return [bounds for bounds, end in ends if place - self.lateness < end <= place]

    def expected_at_once(self, rows):
        found = {}
        for row in rows:
            group = GROUP_OF[row[0]]
            for bounds in self.told_again(group, row):
                kept = self.model[group][0]
                inside = [each for each in kept if bounds in windows_of(self.window, each[1])]
                found[row[0], bounds] = [each for each in inside if each[0] == row[0]]
        return [self.result_of(*window, of) for window, of in found.items()]


class SessionMachine(WindowMachine):
    """Sessions, which leave the model when they have fired."""

    ends_early = 0

    @initialize(
        gap=st.sampled_from([1, 7, 30]),
        large_slots=st.sampled_from([0, 1 << 20]),
        cache_bytes=st.sampled_from([400, 1 << 20]),
        kind=st.sampled_from(["memory", "rocksdb"]),
        # Those with entries of their own are put together all at once.
        aggregates=st.sampled_from([AGGREGATES, PLAIN, PLAIN]),
    )
    def begin(self, gap, cache_bytes, kind, large_slots, aggregates):
        # Of large tables the next pane is listed ahead.
        closing_sessions.LARGE_SLOTS, self.large_slots = large_slots, closing_sessions.LARGE_SLOTS
        super().begin(weir.session(gap), cache_bytes, kind, aggregates)

    def teardown(self):
        closing_sessions.LARGE_SLOTS = getattr(self, "large_slots", closing_sessions.LARGE_SLOTS)
        super().teardown()

    def is_late(self, time_ms, place):
        return time_ms + self.window.size_ms < place

    def last_end(self, time_ms):
        return time_ms + self.window.size_ms + 1

    def expected(self, groups, watermark):
        found = []
        for group in groups:
            _, place = self.model[group]
            left = []
            for rows in self.sessions_of(group):
                if rows[-1][1] + self.window.size_ms < watermark:
                    found += self.told_at_last(group, rows)
                else:
                    left += rows
            place = place if watermark == WATERMARK_MAX_MS else max(place, watermark)
            self.model[group] = (left, place)
        return found

    def sessions_of(self, group):
        """Rows of each session, in the order of their times."""
        sessions = []
        # Equal times stay in the order in which they came.
        for row in sorted(self.model[group][0], key=lambda row: row[:2]):
            if (
                sessions
                and sessions[-1][-1][0] == row[0]
                and row[1] - sessions[-1][-1][1] <= self.window.size_ms
            ):
                sessions[-1].append(row)
            else:
                sessions.append([row])
        return sessions

    def session_result(self, rows, counted):
        """The result of a session that has some rows, of which some count."""
        bounds = (rows[0][1], rows[-1][1] + self.window.size_ms)
        return self.result_of(rows[0][0], bounds, counted)

    def told_at_last(self, group, rows):
        return [self.session_result(rows, rows)]


class EarlySessionMachine(SessionMachine):
    """Sessions that tell what they have whenever the watermark comes to a multiple of 10 ms."""

    @initialize(
        gap=st.sampled_from([1, 7, 30]),
        large_slots=st.sampled_from([0, 1 << 20]),
        cache_bytes=st.sampled_from([400, 1 << 20]),
        kind=st.sampled_from(["memory", "rocksdb"]),
        results=st.sampled_from(["accumulating", "discarding"]),
    )
    def begin(self, gap, cache_bytes, kind, large_slots, results):
        self.results = results
        early_sessions.LARGE_SLOTS = large_slots
        aggregates = PLAIN if results == "discarding" else AGGREGATES
        super().begin(gap, cache_bytes, kind, large_slots, aggregates)
        #: By group: rows that were told.
        self.model["told"] = {group: Counter() for group in range(GROUPS)}

    def teardown(self):
        early_sessions.LARGE_SLOTS = getattr(self, "large_slots", early_sessions.LARGE_SLOTS)
        super().teardown()

    def updates(self):
        return WindowUpdates(0, Trigger(10, "event"), self.results)

    def untold(self, group, rows):
        """Of the rows of a session those that were not told, which came after those that were."""
        told, found = Counter(self.model["told"][group]), []
        for row in rows:
            if told[row]:
                told[row] -= 1
            else:
                found.append(row)
        return found

    def counted(self, group, rows):
        return rows if self.results == "accumulating" else self.untold(group, rows)

    def told_at_last(self, group, rows):
        counted = self.counted(group, rows)
        self.model["told"][group] -= Counter(rows)
        return [self.session_result(rows, counted)] if counted else []

    def told_early(self, groups):
        found = []
        for group in groups:
            for rows in self.sessions_of(group):
                new = self.untold(group, rows)
                if new:
                    found.append(self.session_result(rows, self.counted(group, rows)))
                    self.model["told"][group] += Counter(new)
        return found

    @rule(which=st.sampled_from([(0,), (1,), (0, 1)]), time_ms=TIMES)
    def watermark(self, which, time_ms):
        for subtask in (self.subtasks[index] for index in which):
            if time_ms > subtask.watermark:
                passes = time_ms // 10 > subtask.watermark // 10
                subtask.watermark = time_ms
                told = list(subtask.operator.on_watermark(time_ms))
                expected = self.expected(subtask.groups, time_ms)
                self.check(told, expected + (self.told_early(subtask.groups) if passes else []))


TestSessions = model_test(SessionMachine, max_examples=18, steps=15)
TestEarlySessions = model_test(EarlySessionMachine, max_examples=18, steps=15)
TestLateness = model_test(LatenessMachine, max_examples=18, steps=15)
TestWindows = model_test(WindowMachine, max_examples=18, steps=15)
TestLongWindows = model_test(LongWindowMachine, max_examples=18, steps=15)
