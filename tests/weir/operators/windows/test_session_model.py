"""Sessions against plain Python, whatever the runtime does in between."""

from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import initialize, rule

import weir
from tests.effort import cases
from tests.weir.model_tests import model_test
from tests.weir.operators.windows.window_machine import (
    AGGREGATES,
    GROUP_OF,
    GROUPS,
    PLAIN,
    PLAIN_TEXTS,
    TIMES,
    WITH_TEXTS,
    WindowMachine,
)
from weir.operators.windows.sessions import closing_sessions, early_sessions, session_entries
from weir.rows.records import WATERMARK_MAX_MS, WATERMARK_MIN_MS
from weir.specs.window_updates import Trigger, WindowUpdates


class SessionMachine(WindowMachine):
    """Sessions, which leave the model when they have fired."""

    ends_early = 0

    @initialize(
        gap=st.sampled_from([1, 7, 30]),
        large_slots=st.sampled_from([0, 1 << 20]),
        cache_bytes=st.sampled_from([400, 1 << 20]),
        kind=st.sampled_from(["memory", "rocksdb"]),
        # Those with entries of their own are put together all at once.
        aggregates=st.sampled_from([AGGREGATES, PLAIN, PLAIN, WITH_TEXTS, PLAIN_TEXTS]),
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

    def told_until(self, group):
        return self.model[group][1]

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
                # A group that comes from elsewhere knows how far it was told. What is passed first comes first.
                moments = {}
                for group in subtask.groups:
                    before = max(subtask.watermark, self.told_until(group))
                    if time_ms // 10 > before // 10:
                        first = (time_ms if before == WATERMARK_MIN_MS else before + 10) // 10 * 10
                        moments.setdefault(first, set()).add(group)
                subtask.watermark = time_ms
                told = list(subtask.operator.on_watermark(time_ms))
                expected = []
                for moment, groups in sorted(moments.items()):
                    expected += self.expected(subtask.groups, moment) + self.told_early(groups)
                self.check(told, expected + self.expected(subtask.groups, time_ms))


class LateSessionMachine(EarlySessionMachine):
    """Sessions that take late rows: places are so much before the watermark."""

    @initialize(
        gap=st.sampled_from([1, 7, 30]),
        large_slots=st.sampled_from([0, 1 << 20]),
        cache_bytes=st.sampled_from([400, 1 << 20]),
        kind=st.sampled_from(["memory", "rocksdb"]),
        results=st.sampled_from(["accumulating", "discarding", "changelog"]),
        lateness=st.sampled_from([0, 1, 10, 35, 100]),
        is_early=st.booleans(),
        aggregates=st.sampled_from([AGGREGATES, PLAIN, WITH_TEXTS, PLAIN_TEXTS]),
    )
    def begin(self, gap, cache_bytes, kind, large_slots, results, lateness, is_early, aggregates):
        self.results, self.lateness = results, lateness
        # Without lateness this operator has the changes of early results alone.
        self.is_early = is_early or not lateness
        if not lateness:
            self.results = results = "changelog"
        early_sessions.LARGE_SLOTS = large_slots
        aggregates = aggregates if results == "accumulating" else PLAIN
        SessionMachine.begin(self, gap, cache_bytes, kind, large_slots, aggregates)
        self.model["told"] = {group: Counter() for group in range(GROUPS)}
        #: By group: results that are in the table that changes lead to.
        self.model["shown"] = {group: [] for group in range(GROUPS)}

    def updates(self):
        return WindowUpdates(self.lateness, Trigger(10, "event") if self.is_early else None, self.results)

    def told_until(self, group):
        place = self.model[group][1]
        return place if place == WATERMARK_MIN_MS else place + self.lateness

    def end_of(self, rows):
        return rows[-1][1] + self.window.size_ms

    def tell(self, group, rows):
        counted = self.counted(group, rows)
        new = self.untold(group, rows)
        self.model["told"][group] += Counter(new)
        if self.results != "changelog":
            return [self.session_result(rows, counted)] if counted else []
        if not new:
            return []
        now, shown = self.session_result(rows, rows), self.model["shown"][group]
        before = self.shown_within(group, now)
        self.model["shown"][group] = [row for row in shown if row not in before] + [now]
        kinds = ["delete"] * (len(before) - 1) + ["update_before"]
        changes = [(*row, kind) for row, kind in zip(before, kinds, strict=bool(before))]
        return [*changes, (*now, "update_after" if before else "insert")]

    def counted(self, group, rows):
        return self.untold(group, rows) if self.results == "discarding" else rows

    def expected(self, groups, watermark):
        found = []
        for group in groups:
            told_until, (_, place) = self.told_until(group), self.model[group]
            if watermark != WATERMARK_MAX_MS:
                place = max(place, watermark - self.lateness)
            left = []
            for rows in self.sessions_of(group):
                if self.end_of(rows) < watermark:
                    is_told = told_until <= self.end_of(rows)
                else:
                    is_told = self.is_settled(group, rows, place - self.window.size_ms)
                if is_told:
                    found += self.tell(group, rows)
                if watermark == WATERMARK_MAX_MS or self.end_of(rows) < place:
                    self.model["told"][group] -= Counter(rows)
                else:
                    left += rows
            self.model[group] = (left, place)
        return found

    def expected_at_once(self, rows):
        found = []
        for group in range(GROUPS):
            told_until, (_, place) = self.told_until(group), self.model[group]
            late = {
                row
                for row in rows
                if GROUP_OF[row[0]] == group
                and row[1] + self.window.size_ms < told_until
                and not self.is_late(row[1], place)
            }
            for session in self.sessions_of(group):
                if late.intersection(session) and self.end_of(session) < told_until:
                    found += self.tell(group, session)
        return found

    def is_settled(self, group, rows, gone):
        """Whether an open session is told because entries that have several of its results become one."""
        if self.results != "changelog":
            return False
        shown = self.shown_within(group, self.session_result(rows, rows))
        first_pane = (shown[0][2] - self.window.size_ms) // self.window.size_ms if shown else 0
        lasts = [time for _, time, *_ in rows if time // self.window.size_ms == first_pane]
        return len(shown) > 1 and max(lasts) < gone

    def shown_within(self, group, result):
        key, start, end = result[:3]
        shown = self.model["shown"][group]
        return sorted(row for row in shown if row[0] == key and start <= row[1] and row[2] <= end)

    def told_early(self, groups):
        if not self.is_early:
            return []
        if self.results != "changelog":
            return super().told_early(groups)
        return [row for group in groups for rows in self.sessions_of(group) for row in self.tell(group, rows)]

    def check(self, batches, expected, *, may_repeat=False):
        # However a batch is cut, its late rows are told of together.
        super().check(batches, expected)


class FarSessionMachine(LateSessionMachine):
    """What is around late rows is read pane by pane, as where there are very many keys."""

    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(session_entries, "_NEAR_MAX", 0)

    def teardown(self):
        self.patch.undo()
        super().teardown()


TestFarSessions = model_test(FarSessionMachine, max_examples=cases(7), steps=15)
TestLateSessions = model_test(LateSessionMachine, max_examples=cases(10), steps=15)
TestSessions = model_test(SessionMachine, max_examples=cases(10), steps=15)
TestEarlySessions = model_test(EarlySessionMachine, max_examples=cases(10), steps=15)
