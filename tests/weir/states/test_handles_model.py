"""Random operations on every handle agree with plain Python, whatever the runtime does between two batches."""

import contextlib
import copy
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis.stateful import RuleBasedStateMachine, rule

import weir
from tests.weir.model_tests import model_test
from tests.weir.state.hybrid_store import hybrid_store
from tests.weir.state.rolled_back import ImageOf
from tests.weir.state.slow_memory import SlowMemory
from weir.author.operator import OperatorContext
from weir.config.stores import RocksDbConfig
from weir.dataflow.keyed_steps import process_states
from weir.operators.keyed.process_operator import KeyedProcessOperator
from weir.rows.records import with_times
from weir.specs import KeyedProcessSpec
from weir.state.api import StateBackend
from weir.state.handles import lists, maps
from weir.state.stores.memory import MemoryBackend
from weir.state.stores.rocksdb import open_store
from weir.state.tables.opened import StateTables
from weir.state.tables.values import known_ranges, value_ahead

GROUPS = 4
KEYS = [f"key-{number}" for number in range(7)]
SCHEMA = pa.schema({"k": pa.string(), "got": pa.string()})


class Everything(weir.KeyedProcess):
    """Does what a row says, and returns what it saw."""

    number = weir.ValueState(pl.Int64, default=7)
    plain = weir.ValueState(pl.Float64)
    text = weir.ValueState(pl.String)
    bag = weir.ValueState(pl.List(pl.Int64), default=[])
    most = weir.ReducingState(pl.Int64, max)
    mean = weir.AggregatingState(
        pl.Struct({"n": pl.Int64, "sum": pl.Int64}),
        {"n": 0, "sum": 0},
        lambda kept, value: {"n": kept["n"] + 1, "sum": kept["sum"] + value},
        lambda kept: kept["sum"] / kept["n"] if kept["n"] else None,
    )
    items = weir.ListState(pl.Int64)
    names = weir.MapState(pl.Int64, pl.String)

    def process(
        self, key: tuple[str], row: dict[str, object], context: weir.KeyContext
    ) -> Iterator[dict[str, object]]:
        result = perform(self, row["op"], row["arg"])
        if row["op"] == "fail":
            raise ValueError("asked to")
        yield {"k": key[0], "got": repr(result)}


class Model:
    """The same in plain Python, for one key."""

    def __init__(self) -> None:
        self.number, self.plain, self.text = Box(7), Box(None), Box(None)
        self.bag = Box([])
        self.most, self.mean = Most(), Mean()
        self.items, self.names = PlainList(), PlainMap()


class Box:
    def __init__(self, default):
        self.default = default
        self.clear()

    def clear(self):
        self.value = list(self.default) if isinstance(self.default, list) else self.default


class Most(Box):
    def __init__(self):
        super().__init__(None)

    def add(self, value):
        self.value = value if self.value is None else max(self.value, value)


class Mean:
    def __init__(self):
        self.clear()

    def clear(self):
        self.values = []

    def add(self, value):
        self.values.append(value)

    def result(self):
        return sum(self.values) / len(self.values) if self.values else None


class PlainList(list):
    def appendleft(self, value):
        self.insert(0, value)

    def popleft(self):
        return self.pop(0)

    def replace(self, values):
        self[:] = values


class PlainMap(dict):
    def put(self, key, value):
        self[key] = value

    def delete(self, key):
        return self.pop(key, None) is not None

    def pop_range(self, first=None, last=None, *, limit):
        gone = list(self.range(first, last))[:limit]
        for key, _ in gone:
            del self[key]
        return gone

    pop_frame = pop_range

    def range(self, first=None, last=None, reverse=False):
        chosen = [
            item
            for item in sorted(self.items())
            if (first is None or item[0] >= first) and (last is None or item[0] <= last)
        ]
        return iter(chosen[::-1] if reverse else chosen)


def perform(on, op, arg):
    """One operation; on a model or on a process whose current key is set."""
    try:
        match op:
            case "add":
                on.number.value += arg
                on.most.add(arg)
                on.mean.add(arg)
                return on.number.value, on.most.value, on.mean.result()
            case "set":
                on.plain.value, on.text.value = arg / 2, f"text {arg}"
                return on.plain.value, on.text.value
            case "look":
                return (
                    on.number.value,
                    on.plain.value,
                    on.text.value,
                    on.bag.value,
                    on.most.value,
                    on.mean.result(),
                )
            case "clear":
                for state in (on.number, on.plain, on.text, on.bag, on.most, on.mean)[arg % 3 :: 2]:
                    state.clear()
            case "bag":
                on.bag.value.append(arg)
                return len(on.bag.value)
            case "append":
                on.items.append(arg)
                return len(on.items)
            case "appendleft":
                on.items.appendleft(arg)
            case "extend":
                on.items.extend(range(arg % 5))
            case "pop":
                return on.items.pop()
            case "popleft":
                return on.items.popleft()
            case "replace":
                on.items.replace(range(arg % 4))
            case "set item":
                on.items[arg % 9 - 4] = arg
            case "items":
                return list(on.items), on.items[arg % 7 - 3 :], on.items[arg % 9 - 4]
            case "clear items":
                on.items.clear()
            case "put":
                on.names.put(arg % 11 - 5, f"name {arg}")
                return len(on.names)
            case "delete":
                return on.names.delete(arg % 11 - 5), len(on.names)
            case "name":
                return on.names.get(arg % 11 - 5, "none"), (arg % 11 - 5) in on.names
            case "names":
                low, high = sorted((arg % 13 - 6, arg % 7 - 3))
                return (
                    list(on.names.range()),
                    list(on.names.range(low, high)),
                    list(on.names.range(low, None, reverse=True)),
                )
            case "pop names":
                return on.names.pop_range(arg % 13 - 6, None, limit=arg % 3), len(on.names)
            case "pop frame":
                gone = on.names.pop_frame(None, arg % 13 - 6, limit=arg % 5)
                return (gone.rows() if isinstance(gone, pl.DataFrame) else gone), len(on.names)
            case "clear names":
                on.names.clear()
    except IndexError:
        return "IndexError"
    return None


OPS = [
    *(
        "add",
        "set",
        "look",
        "clear",
        "bag",
        "append",
        "append",
        "appendleft",
        "extend",
        "pop",
        "popleft",
        "replace",
    ),
    *(
        "set item",
        "items",
        "clear items",
        "put",
        "put",
        "put",
        "delete",
        "name",
        "names",
        "names",
        "clear names",
        "pop names",
        "pop names",
        "pop frame",
        "pop frame",
    ),
]
ROWS = st.lists(
    st.tuples(st.sampled_from(KEYS), st.sampled_from(OPS), st.integers(-20, 20)), min_size=1, max_size=30
)


class Owner:
    """A subtask with some of the groups, on a store that others use, too."""

    def __init__(self, backend: StateBackend, cache_bytes: int) -> None:
        spec = KeyedProcessSpec(("k",), Everything, SCHEMA, process_states("step", Everything))
        ids = {state.name: number for number, state in enumerate(spec.states)}
        self.tables = StateTables(backend, cache_bytes, GROUPS)
        self.operator = KeyedProcessOperator(spec)
        self.operator.open(
            OperatorContext(
                "job", "step", 1, 0, 1, max_parallelism=GROUPS, tables=self.tables.of("step", ids)
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


@pytest.fixture(autouse=True)
def small_lists_are_cleared_as_a_range(monkeypatch):
    for module in (lists, maps):
        monkeypatch.setattr(module, "CLEARED_ONE_BY_ONE_MAX", 2)
    monkeypatch.setattr(maps, "POPPED_ONE_BY_ONE_MAX", 0)


class Handles(RuleBasedStateMachine):
    backend: StateBackend
    cache_bytes = 20_000

    def __init__(self) -> None:
        super().__init__()
        self.backend = self.make_store()
        self.owner = Owner(self.backend, self.cache_bytes)
        self.other: Owner | None = None
        self.writer: threading.Thread | None = None
        self.may_end = threading.Event()
        self.models = {key: Model() for key in KEYS}
        #: Of the latest checkpoint: the store's image, and what was in it.
        self.checkpointed: tuple[ImageOf, dict[str, Model]] | None = None
        self.images = 0
        self.image_directory = tempfile.TemporaryDirectory()

    def make_store(self) -> StateBackend:
        return MemoryBackend()

    @rule(rows=ROWS)
    def batch(self, rows):
        expected = [repr(perform(self.models[key], op, arg)) for key, op, arg in rows]
        assert self.owner.run(rows) == expected

    @rule(rows=ROWS)
    def failing_batch(self, rows):
        with pytest.raises(weir.WeirError, match="asked to"):
            self.owner.run([*rows, (KEYS[0], "fail", 0)])

    @rule(share=st.floats(0, 1))
    def flush_part(self, share):
        self.owner.tables.flush_part(share)

    @rule(fails=st.booleans())
    def capture(self, fails):
        self.end_capture()
        for capture in self.owner.tables.capture():
            if fails:
                capture.abandon()
            else:
                capture.write()

    @rule(fails=st.booleans())
    def begin_capture(self, fails):
        """Another thread writes what was noted at the barrier, or gives it up, while rows go on."""
        self.end_capture()
        captures = self.owner.tables.capture()

        def end() -> None:
            self.may_end.wait(0.02)
            for capture in captures:
                if fails:
                    capture.abandon()
                else:
                    capture.write()

        self.may_end.clear()
        self.writer = threading.Thread(target=end)
        self.writer.start()

    @rule()
    def end_capture(self):
        if self.writer is not None:
            self.may_end.set()
            self.writer.join()
            self.writer = None

    @rule()
    def restart(self):
        self.end_capture()
        self.owner.tables.flush()
        self.owner = Owner(self.backend, self.cache_bytes)

    @rule()
    def checkpoint(self):
        """An image has what was captured before it was taken."""
        self.capture(fails=False)
        self.images += 1
        directory = Path(self.image_directory.name, f"image-{self.images}")
        self.checkpointed = ImageOf(self.backend, directory, GROUPS), copy.deepcopy(self.models)

    @rule()
    def restore(self):
        """The subtask dies, and the job goes on from its latest checkpoint."""
        self.end_capture()
        if self.checkpointed is not None:
            image, models = self.checkpointed
            self.backend, self.models = image.reopened(self.backend), copy.deepcopy(models)
            self.owner, self.other = Owner(self.backend, self.cache_bytes), None

    @rule(keeps_caches=st.booleans())
    def hand_over(self, keeps_caches):
        """All groups go to another owner, which may have had them before."""
        groups = range(GROUPS)
        self.end_capture()
        other = (
            self.other if keeps_caches and self.other is not None else Owner(self.backend, self.cache_bytes)
        )
        for table in self.owner.tables:
            table.flush_groups(groups)
            table.release_groups(groups)
        for table in other.tables:
            table.adopt_groups(groups)
        self.owner, self.other = other, self.owner

    @rule(keeps_caches=st.booleans(), rows=ROWS)
    def hand_over_warm(self, keeps_caches, rows):
        """What is cached goes ahead of the groups, rows go on, and what changed since follows."""
        groups = range(GROUPS)
        self.end_capture()
        other = (
            self.other if keeps_caches and self.other is not None else Owner(self.backend, self.cache_bytes)
        )
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

    def teardown(self) -> None:
        self.end_capture()
        rows = [(key, op, 1) for key in KEYS for op in ("look", "items", "names")]
        expected = [repr(perform(self.models[key], op, arg)) for key, op, arg in rows]
        assert self.owner.run(rows) == expected
        self.backend.close()
        self.image_directory.cleanup()


class HandlesOnRocksDb(Handles):
    def make_store(self) -> StateBackend:
        self._directory = tempfile.TemporaryDirectory()
        return open_store(Path(self._directory.name, "store"), RocksDbConfig(), fresh=True)

    def teardown(self) -> None:
        super().teardown()
        self._directory.cleanup()


class HandlesOnHybrid(Handles):
    """Groups here, at a peer that is reached over a socket, and on their way from there."""

    def make_store(self) -> StateBackend:
        self._stack = contextlib.ExitStack()
        return self._stack.enter_context(hybrid_store(range(20), GROUPS))

    def teardown(self) -> None:
        super().teardown()
        self._stack.close()


class HandlesWithoutRoom(Handles):
    """Not even a batch fits."""

    cache_bytes = 2_000


class HandlesReadAhead(Handles):
    """On a store that is asked for much at a time; of most keys not all is known."""

    def make_store(self) -> StateBackend:
        self._patch = pytest.MonkeyPatch()
        for module, name in ((value_ahead, "_ROWS_MAX"), (value_ahead, "_ROWS_MIN")):
            self._patch.setattr(module, name, 3)
        for module in (known_ranges, value_ahead):
            self._patch.setattr(module, "KNOWN_KEYS_MAX", 6)
        return SlowMemory()

    def teardown(self) -> None:
        super().teardown()
        self._patch.undo()


TestHandles = model_test(Handles, 60, 20)
TestHandlesReadAhead = model_test(HandlesReadAhead, 30, 20)
TestHandlesWithoutRoom = model_test(HandlesWithoutRoom, 30, 15)
TestHandlesOnRocksDb = model_test(HandlesOnRocksDb, 10, 15)
TestHandlesOnHybrid = model_test(HandlesOnHybrid, 8, 15)


def test_the_model_compares_something() -> None:
    model = Model()
    assert perform(model, "add", 3) == (10, 3, 3.0)
    assert np.isclose(perform(model, "add", 4)[2], 3.5)
