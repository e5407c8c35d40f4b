"""The tables of one subtask: operators open theirs, the runtime flushes, captures and hands over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from weir.errors import StateError
from weir.state.api import StateBackend
from weir.state.tables.broadcast import BroadcastTable
from weir.state.tables.capture import Capture
from weir.state.tables.cells.cell_table import CellTable
from weir.state.tables.expiry import Expiry
from weir.state.tables.held import HeldTable
from weir.state.tables.panes.window_table import WindowTable
from weir.state.tables.retained import RetainedTable
from weir.state.tables.retention_sweep import RetentionSweep
from weir.state.tables.state_times import StateTimes
from weir.state.tables.sweep import Sweep, Sweeps
from weir.state.tables.table import IsOver, StateTable, never
from weir.state.tables.timers.timer_table import TimerTable
from weir.state.tables.values.packed_table import PackedTable
from weir.state.tables.values.value_table import ValueTable
from weir.state.ttl import Ttl
from weir.types import StoreStats

#: Name of the only state of an operator that does not name its states.
UNNAMED = ""
#: States that the runtime keeps for an operator, besides those that it declares, have names that begin like this.
RESERVED_PREFIX = "_"
#: Reserved states get a part of the cache of a declared one.
_RESERVED_SHARE = 4


class StateTables:
    """One for each subtask with keyed state; called by the subtask's thread."""

    def __init__(
        self,
        backend: StateBackend,
        cache_bytes: int,
        max_parallelism: int,
        groups: Iterable[int] | None = None,
    ) -> None:
        """No table yet.

        Args:
            backend: the stage's store.
            cache_bytes: bound of the cache of one operator's states together.
            max_parallelism: number of key groups.
            groups: key groups that the subtask owns when its operators open; None: all.
        """
        self.backend = backend
        self.max_parallelism = max_parallelism
        self.first_groups = tuple(range(max_parallelism) if groups is None else groups)
        self._cache_bytes = cache_bytes
        self._tables: list[StateTable] = []
        #: Of the tables with a TTL.
        self.sweeps = Sweeps()
        #: Tables that have written everything in the flush that is under way.
        self._flushed: set[int] = set()

    def __iter__(self) -> Iterator[StateTable]:
        """In the order in which they were opened."""
        return iter(self._tables)

    def of(self, step: str, state_ids: Mapping[str, int]) -> OperatorTables:
        """What the operator of a step opens its states with; ``state_ids`` by state name."""
        declared = sum(not name.startswith(RESERVED_PREFIX) for name in state_ids)
        return OperatorTables(self, step, state_ids, self._cache_bytes // max(declared, 1))

    def add(self, table: StateTable) -> None:
        """Drive this table from now on."""
        self._tables.append(table)
        if isinstance(table, RetainedTable):
            self.sweeps.add(RetentionSweep(table, self.backend))
        elif isinstance(table, CellTable | ValueTable) and table.expiry is not None:
            self.sweeps.add(Sweep(table, self.backend, table.state_id, table.expiry))

    def flush(self) -> None:
        """Make all dirty entries durable.

        Raises:
            StateError: the store cannot be written.
        """
        for table in self._tables:
            table.flush()
        if self._tables:
            self.backend.flush()

    def flush_part(self, share: float, is_over: IsOver = never) -> bool:
        """Write this share (0 to 1) of what was dirty at the first call, or less once it is over; True: all of it."""
        for index, table in enumerate(self._tables):
            if index in self._flushed:
                continue
            if table.flush_part(share, is_over):
                self._flushed.add(index)
            if is_over():
                break
        if len(self._flushed) < len(self._tables):
            return False
        self._flushed.clear()
        if self._tables:
            self.backend.flush()
        return True

    def capture(self) -> list[Capture]:
        """Note what is dirty; the captures are to be written, or abandoned. After an error none is left."""
        self._flushed.clear()
        captures: list[Capture] = []
        try:
            for table in self._tables:
                capture = table.capture()
                if capture is not None:
                    captures.append(capture)
        except BaseException:
            for capture in captures:
                capture.abandon()
            raise
        return captures

    def stats(self) -> StoreStats:
        """Hits, misses and memory of all caches together; other threads may ask."""
        stats = [table.stats() for table in list(self._tables)]
        return StoreStats(
            cache_hits=sum(each.cache_hits for each in stats),
            cache_misses=sum(each.cache_misses for each in stats),
            memory_bytes=sum(each.memory_bytes for each in stats),
        )

    def close(self) -> None:
        """Forget the caches without writing; the store stays open."""
        self._tables.clear()
        self._flushed.clear()


@dataclass(frozen=True)
class OperatorTables:
    """Opens the states of one operator, in ``Operator.open``."""

    tables: StateTables
    #: Name of the operator, for messages.
    step: str
    #: Number of each declared state in the store, by its name.
    state_ids: Mapping[str, int]
    #: Bound of the cache of one state.
    cache_bytes: int
    #: What the TTLs of its states go by.
    times: StateTimes = field(default_factory=StateTimes)

    @property
    def max_parallelism(self) -> int:
        """Number of key groups."""
        return self.tables.max_parallelism

    @property
    def backend(self) -> StateBackend:
        """The stage's store."""
        return self.tables.backend

    def cells(
        self,
        cell_count: int,
        name: str = UNNAMED,
        *,
        drops_empty: bool = False,
        other_cell_count: int = 0,
        ttl: Ttl | None = None,
    ) -> CellTable:
        """Open a state of ``cell_count`` fixed-width cells a key; the last three as for :class:`CellTable`.

        ``ttl``: its last cell is the time, see ``weir.state.tables.expiry``.

        Raises:
            StateError: the operator has declared no such state.
        """
        table = CellTable(
            self.backend,
            self._state_id(name),
            cell_count,
            self.cache_bytes,
            self.max_parallelism,
            drops_empty=drops_empty,
            other_cell_count=other_cell_count,
            expiry=self._expiry(name, ttl),
        )
        self.tables.add(table)
        return table

    def windows(self, cell_count: int, name: str = UNNAMED) -> WindowTable:
        """Open a state of ``cell_count`` fixed-width cells for each key in each pane.

        Raises:
            StateError: the operator has declared no such state.
        """
        table = WindowTable(
            self.backend,
            self._state_id(name),
            cell_count,
            self.cache_bytes,
            self.max_parallelism,
            self.tables.first_groups,
        )
        self.tables.add(table)
        return table

    def values(
        self,
        name: str = UNNAMED,
        owner_of: Callable[[bytes], bytes] | None = None,
        *,
        ttl: Ttl | None = None,
    ) -> ValueTable:
        """Open a state of values of any length; ``owner_of`` as for :class:`ValueTable`.

        ``ttl``: values begin with their time, see ``weir.state.tables.expiry``.

        Raises:
            StateError: the operator has declared no such state.
        """
        table = ValueTable(
            self.backend, self._state_id(name), self.cache_bytes, owner_of, self._expiry(name, ttl)
        )
        self.tables.add(table)
        return table

    def packed(self, name: str = UNNAMED) -> PackedTable:
        """Open a state of values of any length, which are read and written as arrays.

        Raises:
            StateError: the operator has declared no such state.
        """
        table = PackedTable(self.backend, self._state_id(name), self.cache_bytes, self.max_parallelism)
        self.tables.add(table)
        return table

    def held(self, name: str, held_bytes_max: int) -> HeldTable:
        """Open a state of which the operator has all in memory, so much at most, under a reserved name.

        Raises:
            StateError: the operator has declared no such state.
        """
        table = HeldTable(
            self.backend,
            self._state_id(name),
            self.cache_bytes // _RESERVED_SHARE,
            self.tables.first_groups,
            held_bytes_max,
        )
        self.tables.add(table)
        return table

    def retained(self, name: str, retention: Ttl) -> RetainedTable:
        """Open a state of entries that belong to times and leave when their retention is over.

        Raises:
            StateError: the operator has declared no such state.
        """
        expiry = self._expiry(name, retention)
        assert expiry is not None
        table = RetainedTable(self.backend, self._state_id(name), self.cache_bytes, expiry)
        self.tables.add(table)
        return table

    def broadcast(self, name: str) -> BroadcastTable:
        """Open a dict that is the same on every subtask.

        Raises:
            StateError: the operator has declared no such state.
        """
        table = BroadcastTable(self.backend, self._state_id(name), self.tables.first_groups)
        self.tables.add(table)
        return table

    def timers(self, name: str) -> TimerTable:
        """Open a state of timers, under a reserved name.

        Raises:
            StateError: the operator has declared no such state.
        """
        table = TimerTable(
            self.backend,
            self._state_id(name),
            self.cache_bytes // _RESERVED_SHARE,
            self.tables.first_groups,
        )
        self.tables.add(table)
        return table

    def _expiry(self, name: str, ttl: Ttl | None) -> Expiry | None:
        if ttl is None:
            return None
        return Expiry(
            ttl,
            self.times,
            name,
            self.backend,
            self._state_id(name),
            self.max_parallelism,
            self.tables.first_groups,
        )

    def _state_id(self, name: str) -> int:
        if name not in self.state_ids:
            declared = ", ".join(map(repr, self.state_ids)) or "none"
            raise StateError(f"step {self.step!r} has no state {name!r}; its declared states: {declared}")
        return self.state_ids[name]
