"""Windows made of panes against plain Python, whatever the runtime does in between."""

import hypothesis.strategies as st
from hypothesis.stateful import initialize, rule

import weir
from tests.effort import cases
from tests.weir.model_tests import model_test
from tests.weir.operators.windows.window_machine import (
    AGGREGATES,
    GROUP_OF,
    PLAIN,
    PLAIN_TEXTS,
    ROWS,
    SUMS,
    WINDOWS,
    WITH_TEXTS,
    WindowMachine,
    windows_of,
)
from weir.specs.window_updates import WindowUpdates
from weir.state.tables.panes import packed_panes, window_table


class LongWindowMachine(WindowMachine):
    """Windows of many panes, of which time passes one after the other, so that panes are packed."""

    @initialize(
        window=st.sampled_from(
            [weir.sliding(40, 10), weir.sliding(60, 5, offset=2), weir.cumulative(80, 10)]
        ),
        aggregates=st.sampled_from([PLAIN, SUMS, PLAIN_TEXTS]),
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
        aggregates=st.sampled_from([AGGREGATES, SUMS, WITH_TEXTS]),
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


TestLateness = model_test(LatenessMachine, max_examples=cases(10), steps=15)
TestWindows = model_test(WindowMachine, max_examples=cases(10), steps=15)
TestLongWindows = model_test(LongWindowMachine, max_examples=cases(10), steps=15)
