"""Random operations on states with a TTL agree with plain Python, whatever the clock and the runtime do in between."""

import contextlib
import copy
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import polars as pl
import pyarrow as pa
from hypothesis.stateful import RuleBasedStateMachine, rule

import weir
from tests.weir.model_tests import model_test
from tests.weir.state.hybrid_store import hybrid_store
from tests.weir.state.rolled_back import ImageOf
from tests.weir.state.slow_memory import SlowMemory
from tests.weir.states.test_handles_model import GROUPS, KEYS, OPS, SCHEMA, perform
from weir.author.operator import OperatorContext
from weir.config.stores import RocksDbConfig
from weir.dataflow.keyed_steps import process_states
from weir.operators.keyed.process_operator import KeyedProcessOperator
from weir.rows.records import with_times
from weir.specs import KeyedProcessSpec
from weir.state.stores.memory import MemoryBackend
from weir.state.stores.rocksdb import open_store
from weir.state.tables.opened import StateTables
from weir.testing import ManualClock

TTL_MS = 100
ROWS = st.lists(
    st.tuples(st.sampled_from(KEYS), st.sampled_from([*OPS, "lengths"]), st.integers(-20, 20)),
    min_size=1,
    max_size=20,
)


def do(on, op, arg):
    if op == "lengths":
        return len(on.items), bool(on.items), len(on.names), bool(on.names)
    return perform(on, op, arg)


def process_with(ttl: weir.Ttl) -> type[weir.KeyedProcess]:
    """Every kind of state with this TTL; does what a row says, and returns what it saw."""

    class Everything(weir.KeyedProcess):
        number = weir.ValueState(pl.Int64, default=7, ttl=ttl)
        plain = weir.ValueState(pl.Float64, ttl=ttl)
        text = weir.ValueState(pl.String, ttl=ttl)
        bag = weir.ValueState(pl.List(pl.Int64), default=[], ttl=ttl)
        most = weir.ReducingState(pl.Int64, max, ttl=ttl)
        mean = weir.AggregatingState(
            pl.Struct({"n": pl.Int64, "sum": pl.Int64}),
            {"n": 0, "sum": 0},
            lambda kept, value: {"n": kept["n"] + 1, "sum": kept["sum"] + value},
            lambda kept: kept["sum"] / kept["n"] if kept["n"] else None,
            ttl=ttl,
        )
        items = weir.ListState(pl.Int64, ttl=ttl)
        names = weir.MapState(pl.Int64, pl.String, ttl=ttl)

        def process(self, key, row, context):
            yield {"k": key[0], "got": repr(do(self, row["op"], row["arg"]))}

    return Everything


class Now:
    """The model's time, and when what was written before it was known counts as written."""

    def __init__(self, refreshed_by):
        self.ms = None
        self.since = None
        self.is_refreshed = refreshed_by == "access"

    def advance(self, ms):
        self.ms = ms if self.ms is None else max(self.ms, ms)
        self.since = self.ms if self.since is None else self.since

    def lives(self, stamp):
        if self.ms is None:
            return True
        return (self.since if stamp is None else stamp) + TTL_MS > self.ms


class Box:
    def __init__(self, now, default=None):
        self.now, self.default = now, default
        self.clear()

    def clear(self):
        self.kept = None

    @property
    def value(self):
        if self.kept is not None and not self.now.lives(self.kept[1]):
            self.kept = None
        if self.kept is None:
            return self.default
        if self.now.is_refreshed:
            self.kept = self.kept[0], self.now.ms
        return self.kept[0]

    @value.setter
    def value(self, value):
        self.kept = value, self.now.ms


class Bag(Box):
    @property
    def value(self):
        kept = Box.value.fget(self)
        return Appended(kept or [], self)


class Appended(list):
    def __init__(self, items, box):
        super().__init__(items)
        self.box = box

    def append(self, value):
        super().append(value)
        self.box.kept = list(self), self.box.now.ms


class Most(Box):
    def add(self, value):
        before = self.value
        self.value = value if before is None else max(before, value)


class Mean(Box):
    def add(self, value):
        self.value = [*(self.value or ()), value]

    def result(self):
        values = self.value
        return sum(values) / len(values) if values else None


class Items:
    def __init__(self, now):
        self.now, self.kept = now, []

    def _live(self):
        self.kept = [item for item in self.kept if self.now.lives(item[1])]
        return self.kept

    def _read(self, index):
        item = self._live()[index]
        if self.now.is_refreshed:
            for one in item if isinstance(index, slice) else [item]:
                one[1] = self.now.ms
        return [one[0] for one in item] if isinstance(index, slice) else item[0]

    def __len__(self):
        return len(self._live())

    def __iter__(self):
        return iter(self._read(slice(None)))

    def __getitem__(self, index):
        return self._read(index)

    def __setitem__(self, index, value):
        self._live()[index] = [value, self.now.ms]

    def append(self, value):
        self._live().append([value, self.now.ms])

    def appendleft(self, value):
        self._live().insert(0, [value, self.now.ms])

    def extend(self, values):
        for value in values:
            self.append(value)

    def pop(self, index=-1):
        return self._live().pop(index)[0]

    def popleft(self):
        return self.pop(0)

    def replace(self, values):
        self.clear()
        self.extend(values)

    def clear(self):
        self.kept = []


class Names:
    def __init__(self, now):
        self.now, self.kept = now, {}

    def _live(self):
        self.kept = {key: item for key, item in self.kept.items() if self.now.lives(item[1])}
        return self.kept

    def __len__(self):
        return len(self._live())

    def __contains__(self, key):
        return self.get(key) is not None

    def get(self, key, default=None):
        item = self._live().get(key)
        if item is None:
            return default
        if self.now.is_refreshed:
            item[1] = self.now.ms
        return item[0]

    def put(self, key, value):
        self._live()[key] = [value, self.now.ms]

    def delete(self, key):
        return self._live().pop(key, None) is not None

    def clear(self):
        self.kept = {}

    def pop_range(self, first=None, last=None, *, limit):
        # What stays is not accessed.
        gone = [(key, self.kept[key][0]) for key in self._between(first, last)[:limit]]
        for key, _ in gone:
            del self.kept[key]
        return gone

    pop_frame = pop_range

    def _between(self, start, stop):
        return [
            key
            for key in sorted(self._live())
            if (start is None or key >= start) and (stop is None or key <= stop)
        ]

    def range(self, start=None, stop=None, reverse=False):
        chosen = self._between(start, stop)
        return [(key, self.get(key)) for key in (chosen[::-1] if reverse else chosen)]


class Model:
    def __init__(self, now):
        self.number, self.plain, self.text = Box(now, 7), Box(now), Box(now)
        self.bag, self.most, self.mean = Bag(now), Most(now), Mean(now)
        self.items, self.names = Items(now), Names(now)


class Owner:
    """A subtask with some of the groups, on a store that others use, too."""

    def __init__(self, backend, cache_bytes, process, clock, groups=None, restored=None):
        spec = KeyedProcessSpec(("k",), process, SCHEMA, process_states("step", process))
        ids = {state.name: number for number, state in enumerate(spec.states)}
        self.tables = StateTables(backend, cache_bytes, GROUPS, groups)
        self.operator = KeyedProcessOperator(spec)
        self.operator.open(
            OperatorContext(
                "job",
                "step",
                1,
                0,
                1,
                max_parallelism=GROUPS,
                clock=clock,
                tables=self.tables.of("step", ids),
                restored=restored or {},
            )
        )

    def run(self, rows):
        batch = pa.record_batch(
            {
                "k": [key for key, _, _ in rows],
                "op": [op for _, op, _ in rows],
                "arg": pa.array([arg for _, _, arg in rows], pa.int64()),
            }
        )
        outputs = self.operator.process(with_times(batch, 0, 0))
        return [value for out in outputs for value in out.column("got").to_pylist()]


class Handles(RuleBasedStateMachine):
    cache_bytes = 20_000
    ttl = weir.Ttl("100ms")

    def __init__(self) -> None:
        super().__init__()
        self.backend = self.make_store()
        self.clock = ManualClock()
        self.process = process_with(self.ttl)
        self.owner = self.make_owner()
        self.other: Owner | None = None
        self.now = Now(self.ttl.refreshed_by)
        if self.ttl.time == "processing":
            self.now.advance(self.clock.now_us() // 1000)
        self.models = {key: Model(self.now) for key in KEYS}
        #: Of the latest checkpoint: the store's image, the operator's part, and what was in them.
        self.checkpointed = None
        self.images = 0
        self.image_directory = tempfile.TemporaryDirectory()

    def make_store(self):
        return MemoryBackend()

    def make_owner(self, groups=None, restored=None):
        return Owner(self.backend, self.cache_bytes, self.process, self.clock, groups, restored)

    @rule(rows=ROWS)
    def batch(self, rows):
        expected = [repr(do(self.models[key], op, arg)) for key, op, arg in rows]
        assert self.owner.run(rows) == expected

    @rule(ms=st.sampled_from([1, 30, 60, 99, 100, 250]))
    def time_goes_on(self, ms):
        if self.ttl.time == "processing":
            self.clock.advance_ms(ms)
            self.now.advance(self.clock.now_us() // 1000)
        else:
            self.now.advance((self.now.ms or 1_000) + ms)
            list(self.owner.operator.on_watermark(self.now.ms))

    @rule(share=st.floats(0, 1))
    def flush_part(self, share):
        self.owner.tables.flush_part(share)

    @rule(budget_s=st.sampled_from([0.0, 1.0]))
    def sweep(self, budget_s):
        self.owner.tables.sweeps.step(budget_s)
        if self.other is not None:
            self.other.tables.sweeps.step(budget_s)

    @rule(fails=st.booleans())
    def capture(self, fails):
        for capture in self.owner.tables.capture():
            if fails:
                capture.abandon()
            else:
                capture.write()

    @rule()
    def restart(self):
        """From a checkpoint; the watermark comes again later."""
        self.owner.tables.flush()
        restored = {0: self.owner.operator.snapshot(1)}
        self.owner, self.other = self.make_owner(restored=restored), None

    @rule()
    def checkpoint(self):
        part = self.owner.operator.snapshot(1)
        self.capture(fails=False)
        self.images += 1
        image = ImageOf(self.backend, Path(self.image_directory.name, f"image-{self.images}"), GROUPS)
        self.checkpointed = image, part, copy.deepcopy((self.now, self.models))

    @rule()
    def restore(self):
        """The subtask dies, and the job goes on from its latest checkpoint; the clock does not go back."""
        if self.checkpointed is None:
            return
        image, part, models = self.checkpointed
        self.backend = image.reopened(self.backend)
        self.now, self.models = copy.deepcopy(models)
        if self.ttl.time == "processing":
            self.now.advance(self.clock.now_us() // 1000)
        self.owner, self.other = self.make_owner(restored={0: part}), None

    @rule(keeps_caches=st.booleans(), rows=ROWS)
    def hand_over_warm(self, keeps_caches, rows):
        """What is cached goes ahead of the groups, rows go on, and what changed since follows."""
        groups = range(GROUPS)
        other = self.other if keeps_caches and self.other is not None else self.make_owner(groups=())
        new_tables = list(other.tables)
        for table in new_tables:
            table.clear_groups(groups)
        for table, new in zip(self.owner.tables, new_tables, strict=True):
            table.flush_groups(groups)
            new.take_copy(table.copy_groups(groups, 1000, 1 << 20), groups)
        self.batch(rows)
        for table, new in zip(self.owner.tables, new_tables, strict=True):
            good = list(table.good_copies(groups))
            new.clear_groups(set(groups).difference(good))
            new.take_copy(table.changes_since_copy(good), good)
            new.keep_copies(good)
            table.release_groups(groups)
            new.adopt_groups(groups)
        self.owner, self.other = other, self.owner

    @rule(keeps_caches=st.booleans())
    def hand_over(self, keeps_caches):
        """All groups go to another owner, which may have had them before, and knows an older watermark."""
        groups = range(GROUPS)
        other = self.other if keeps_caches and self.other is not None else self.make_owner(groups=())
        for table in self.owner.tables:
            table.flush_groups(groups)
            table.release_groups(groups)
        for table in other.tables:
            table.adopt_groups(groups)
        self.owner, self.other = other, self.owner

    def teardown(self) -> None:
        rows = [(key, op, 1) for key in KEYS for op in ("look", "items", "names", "lengths")]
        expected = [repr(do(self.models[key], op, arg)) for key, op, arg in rows]
        assert self.owner.run(rows) == expected
        self.backend.close()
        self.image_directory.cleanup()


class OnRocksDb(Handles):
    ttl = weir.Ttl("100ms", refreshed_by="access")

    def make_store(self):
        self._directory = tempfile.TemporaryDirectory()
        return open_store(Path(self._directory.name, "store"), RocksDbConfig(), fresh=True)

    def teardown(self) -> None:
        super().teardown()
        self._directory.cleanup()


class OnHybrid(Handles):
    """Groups here, at a peer that is reached over a socket, and on their way from there."""

    ttl = weir.Ttl("100ms", refreshed_by="access")

    def make_store(self):
        self._stack = contextlib.ExitStack()
        return self._stack.enter_context(hybrid_store(range(20), GROUPS))

    def teardown(self) -> None:
        super().teardown()
        self._stack.close()


class ReadAhead(Handles):
    """On a store that is asked for much at a time."""

    def make_store(self):
        return SlowMemory()


class ByAccess(Handles):
    ttl = weir.Ttl("100ms", refreshed_by="access")


class InProcessingTime(Handles):
    ttl = weir.Ttl("100ms", time="processing")


class WithoutRoom(Handles):
    """Not even a batch fits."""

    cache_bytes = 2_000
    ttl = weir.Ttl("100ms", refreshed_by="access", time="processing")


TestEventTime = model_test(Handles, 30, 25)
TestByAccess = model_test(ByAccess, 30, 25)
TestProcessingTime = model_test(InProcessingTime, 20, 25)
TestWithoutRoom = model_test(WithoutRoom, 20, 25)
TestReadAhead = model_test(ReadAhead, 10, 25)
TestOnHybrid = model_test(OnHybrid, 8, 25)
TestOnRocksDb = model_test(OnRocksDb, 8, 25)
