"""Opens states with a retention over a store, as a step of a job has them, and uses them key by key."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from weir.author.states import State
from weir.keys import hashing as weir_keys
from weir.operators.keyed.opening import open_handle
from weir.state.api import StateBackend
from weir.state.handles.block import Cursor, Keys
from weir.state.tables.opened import StateTables


class Step:
    """One operator with declared states, in one subtask."""

    def __init__(
        self, backend: StateBackend, states: dict[str, State], groups: int = 1, cache: int = 1 << 20
    ):
        self.groups = groups
        self.tables = StateTables(backend, cache, groups)
        opened = self.tables.of("step", {name: 2 + number for number, name in enumerate(sorted(states))})
        self.times = opened.times
        self.cursor = Cursor()
        self.handles = {}
        for name, state in states.items():
            state.__set_name__(Step, name)
            self.handles[name] = open_handle(state, opened, self.cursor)

    def keys(self, names: Sequence[str]) -> Keys:
        batch = pa.RecordBatch.from_pydict({"k": pa.array(names, pa.string())})
        column = weir_keys.key_bytes(batch, ("k",))
        return Keys(weir_keys.hash_keys(column), column, self.groups)

    @contextmanager
    def at(self, name: str, now_ms: int | None = None) -> Iterator[None]:
        """Make a key the current one of a batch, and end the batch; ``now_ms``: the time of its row."""
        if now_ms is not None:
            self.times.enter_rows(now_ms)
            self.times.move(now_ms)
        self.cursor.block, self.cursor.index = self.keys([name]).distinct, 0
        try:
            yield
            for handle in self.handles.values():
                handle.prepare()
                handle.apply()
        finally:
            for handle in self.handles.values():
                handle.discard()
            self.cursor.block = self.cursor.index = None
            if now_ms is not None:
                self.times.leave_rows()

    def sweep(self) -> None:
        """Sweep until there is nothing to do."""
        while self.tables.sweeps.step(budget_s=1):
            pass
        self.tables.flush()
