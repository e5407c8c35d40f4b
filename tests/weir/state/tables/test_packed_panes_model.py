"""Panes of two window tables over one store, packed and dropped while key groups move, against a dictionary."""

from functools import partial

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.effort import cases
from tests.weir.model_tests import model_test
from weir.keys import hashing as weir_keys
from weir.state import layout
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.panes import packed_panes, window_table
from weir.state.tables.panes.packed_reading import scan_entries
from weir.state.tables.panes.window_table import WindowTable
from weir.state.tables.timers.time_first import time_bytes, time_of, user_key_of

GROUPS = 3
KEYS = [b"key %d" % number for number in range(12)]
_HASHES = weir_keys.hash_keys(weir_keys.KeyColumn.from_list(KEYS))
GROUP_OF = dict(zip(KEYS, weir_keys.key_groups(_HASHES, GROUPS).tolist(), strict=True))


class PackedPanesMachine(RuleBasedStateMachine):
    """Time passes pane by pane; a pane is packed when the next one begins."""

    @initialize(referring_max=st.sampled_from([1, 3, 64]))
    def begin(self, referring_max):
        self.before = window_table.PACKED_ENTRIES_MIN, packed_panes.REFERRING_MAX
        window_table.PACKED_ENTRIES_MIN, packed_panes.REFERRING_MAX = 1, referring_max
        self.backend = MemoryBackend()
        self.owner = dict.fromkeys(range(GROUPS), 0)
        self.open_tables()
        self.now_ms = 0
        #: By end and key; and up to where each group's panes are over.
        self.model = {}
        self.over_ms = dict.fromkeys(range(GROUPS), -1)

    def open_tables(self):
        self.tables = [
            WindowTable(
                self.backend, 7, 2, 1 << 20, GROUPS, [g for g, of in self.owner.items() if of == index]
            )
            for index in range(2)
        ]

    def teardown(self):
        if hasattr(self, "before"):
            window_table.PACKED_ENTRIES_MIN, packed_panes.REFERRING_MAX = self.before
            self.end()

    def end(self):
        """What is over leaves nothing in the store."""
        for table in self.tables:
            table.look()
            table.drop(self.now_ms + 100)
            table.flush()
            assert table._packed.bytes == 0
        assert not [key for key, _ in self.backend.scan() if key[4:6] == b"\x01p"]

    def add(self, end_ms, keys, value):
        for index, table in enumerate(self.tables):
            own = [key for key in keys if self.owner[GROUP_OF[key]] == index]
            column = weir_keys.KeyColumn.from_list(own)
            ends_ms = np.full(len(own), end_ms)
            for _, _, slots in table.update(ends_ms, weir_keys.hash_keys(column), column):
                table.cells[slots] += [1, value]
                table.presence[slots] |= 3
            for key in own:
                count, total = self.model.get((end_ms, key), (0, 0))
                self.model[end_ms, key] = count + 1, total + value

    @rule(
        keys=st.sets(st.sampled_from(KEYS), min_size=1),
        lacking=st.lists(st.sampled_from([None, *KEYS]), min_size=1, max_size=5),
        value=st.integers(-5, 5000),
        kept_ms=st.sampled_from([20, 30, 1_000]),
    )
    def pass_panes(self, keys, lacking, value, kept_ms):
        for lacks in lacking:
            self.now_ms += 10
            self.add(self.now_ms, sorted(keys - {lacks}), value)
            for table in self.tables:
                table.pack(self.now_ms)
            self.drop(self.now_ms - kept_ms)

    @rule(back_ms=st.sampled_from([0, 10, 40]), keys=st.sets(st.sampled_from(KEYS), min_size=1, max_size=3))
    def take_late_rows(self, back_ms, keys):
        end_ms = self.now_ms - back_ms
        self.add(end_ms, [key for key in sorted(keys) if self.over_ms[GROUP_OF[key]] < end_ms], 1)

    def drop(self, until_ms):
        for table in self.tables:
            table.look()
            table.drop(until_ms)
        for group in self.over_ms:
            self.over_ms[group] = max(self.over_ms[group], until_ms)

    @rule(which=st.integers(0, 1), kept_bytes=st.sampled_from([600, 300, 0]))
    def have_little_room(self, which, kept_bytes):
        packed = self.tables[which]._packed
        while packed.bytes > kept_bytes:
            packed.give_up_last()

    @rule(group=st.integers(0, GROUPS - 1))
    def move(self, group):
        giver = self.owner[group]
        self.tables[giver].flush_groups([group])
        self.tables[giver].release_groups([group])
        self.owner[group] = 1 - giver
        self.tables[1 - giver].adopt_groups([group])

    @rule()
    def flush(self):
        for table in self.tables:
            table.flush()

    @rule()
    def start_again(self):
        self.flush()
        self.open_tables()

    def expected(self):
        return {
            each: value for each, value in self.model.items() if each[0] > self.over_ms[GROUP_OF[each[1]]]
        }

    @invariant()
    def tables_have_all_entries(self):
        found = {}
        for table in self.tables if hasattr(self, "tables") else ():
            for block in table.entries(-100, 1 << 40):
                columns = (block.ends_ms.tolist(), block.keys.to_list(), block.cells.tolist())
                for end_ms, key, cells in zip(*columns, strict=True):
                    if end_ms > self.over_ms[GROUP_OF[key]]:
                        assert (end_ms, key) not in found
                        found[end_ms, key] = tuple(cells)
        if found or hasattr(self, "tables"):
            assert found == self.expected()

    @rule(reverse=st.booleans())
    def scan(self, reverse):
        self.flush()
        found = {}
        for group in range(GROUPS):
            prefix = layout.key_prefix(group, 7)
            start, stop = prefix + time_bytes(self.over_ms[group] + 1), prefix + time_bytes(1 << 40)
            listed = list(scan_entries(self.backend.scan, start, stop, reverse=reverse))
            assert listed == sorted(listed, reverse=reverse)
            for key, value in listed:
                found[time_of(key), user_key_of(key)] = tuple(np.frombuffer(value[2:], "<i8").tolist())
        assert found == self.expected()


def test_rows_that_the_store_is_to_lose_are_not_read_with_those_of_a_group_that_came_later():
    """Their keys are in a pane of which this table has no rows of their group any more; Hypothesis found it."""
    machine = PackedPanesMachine()
    machine.begin(1)
    steps = [
        partial(machine.pass_panes, keys=set(KEYS[:4]), lacking=[None] * 4, value=0, kept_ms=20),
        partial(machine.move, group=0),
        partial(machine.pass_panes, keys={KEYS[0], KEYS[9]}, lacking=[None] * 3, value=0, kept_ms=20),
        partial(machine.move, group=0),
        partial(machine.have_little_room, kept_bytes=300, which=0),
    ]
    for step in steps:
        step()
        machine.tables_have_all_entries()
    machine.teardown()


TestPackedPanes = model_test(PackedPanesMachine, max_examples=cases(15), steps=20)
