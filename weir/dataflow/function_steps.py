"""Steps of the dataflow API that call functions and operators of the job's author. See ``weir.dataflow.streams``."""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import pyarrow as pa

from weir.dataflow.frame import Columns, StreamFrame, StreamT, checked_callable
from weir.dataflow.lookup_tables import CassandraTable, FileTable
from weir.errors import GraphError
from weir.specs import FlatMapSpec, MapBatchesSpec, MapSpec, UserOperatorSpec
from weir.specs.async_map import MapAsyncSpec, check_is_async, check_is_plain
from weir.specs.lookup_joins import LookupJoinSpec, added_columns
from weir.specs.lookups import LookupFunction, LookupSpec, LookupType
from weir.spelling import did_you_mean
from weir.state.ttl import duration_ms


class FunctionSteps(StreamFrame[StreamT]):
    """Steps of any stream."""

    def map_batches(
        self,
        name: str | None,
        function: Callable[[pa.RecordBatch], pa.RecordBatch],
        schema: Columns | None = None,
        *,
        reads: Sequence[str] | None = None,
        parallelism: int | None = None,
    ) -> StreamT:
        """Call ``function(batch) -> batch`` with record batches: user columns, then both time columns.

        ``schema`` has the user columns of the result (None: the same as the input's). A result without time
        columns gets those of the input if it has as many rows. What the function remembers does not survive a restart.

        ``reads`` has the columns that a function reads that only adds columns: it returns all columns of its batch as
        they are. Columns that neither it nor anything after it reads are not read at all, and do not come.
        """
        made, given = self._schema(name, schema), self.schema
        if reads is None:
            return self._step(name, MapBatchesSpec(_plain(name, function), made), parallelism)
        for column in reads:
            if column not in given.names:
                raise GraphError(f"{name}: reads has no column {column!r}{did_you_mean(column, given.names)}")
        if lost := [each.name for each in given if each not in list(made)]:
            raise GraphError(
                f"{name}: a function with reads hands all columns on as they are, but schema has no {lost[0]!r} of "
                "that type; add it, or leave reads out"
            )
        adds = frozenset(made.names).difference(given.names)
        spec = MapBatchesSpec(_plain(name, function), made, frozenset(reads), adds)
        return self._step(name, spec, parallelism)

    def map(
        self,
        name: str | None,
        function: Callable[[dict[str, Any]], dict[str, Any]],
        schema: Columns | None = None,
        *,
        parallelism: int | None = None,
    ) -> StreamT:
        """Call ``function(row) -> row`` for each record: the slow path, Python for every event.

        A row is a dict of the user columns; the result has the times of its record.
        """
        return self._step(
            name,
            MapSpec(_plain(name, function), self._schema(name, schema)),
            parallelism,
        )

    def map_async(
        self,
        name: str | None,
        function: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]],
        schema: Columns | None = None,
        *,
        in_flight_max: int = 100,
        timeout: str | dt.timedelta = "5s",
        ordered: bool = True,
        parallelism: int | None = None,
    ) -> StreamT:
        """Call ``await function(row) -> row`` for each record, for many at a time: a look-up over the network.

        As :meth:`map` otherwise, errors included. Calls run in an event loop of each subtask; what has been called and
        not answered at a failure is called again after the restart.

        Args:
            name: the step's name.
            function: an ``async def`` that takes a dict of the user columns and returns one of the declared columns.
            schema: user columns of the result; None: the same as the input's.
            in_flight_max: rows of a subtask that are under way, or wait for those before them.
            timeout: of each call, such as "500ms"; one that takes longer is cancelled, and counts as having raised.
            ordered: rows leave in the order in which they came; False: in that of the answers, though never past a
                watermark or a checkpoint.
            parallelism: subtasks; None: as many as the producer has.
        """
        check_is_async(name, checked_callable(name, function))
        try:
            timeout_ms = duration_ms(timeout)
        except GraphError as error:
            raise GraphError(f"step {name!r}: timeout: {error}") from error
        spec = MapAsyncSpec(function, self._schema(name, schema), in_flight_max, timeout_ms, bool(ordered))
        return self._step(name, spec, parallelism)

    def flat_map(
        self,
        name: str | None,
        function: Callable[[dict[str, Any]], Iterable[dict[str, Any]]],
        schema: Columns | None = None,
        *,
        parallelism: int | None = None,
    ) -> StreamT:
        """Call ``function(row) -> rows`` for each record; they have the times of that record. A slow path."""
        return self._step(
            name,
            FlatMapSpec(_plain(name, function), self._schema(name, schema)),
            parallelism,
        )

    def apply(
        self,
        name: str | None,
        factory: Callable[[], Any],
        schema: Columns | None = None,
        *,
        side_outputs: Mapping[str, Columns | None] | None = None,
        parallelism: int | None = None,
    ) -> StreamT:
        """Run a :class:`weir.Operator` of your own; ``factory()`` makes one per subtask.

        Batches in, batches out: user columns, then both time columns. ``schema`` has the user columns of the result
        (None: the same as the input's). With settings pass ``functools.partial(MyOperator, setting=1)``. Keyed state
        needs :meth:`KeyedStream.process`.

        ``side_outputs``: further outputs by name, with their columns (None: the input's); the operator sends batches to
        them with ``yield weir.side(output, batch)``, and :meth:`side_output` reads them.
        """
        sides = self._side_outputs(name, side_outputs)
        spec = UserOperatorSpec(checked_callable(name, factory), self._schema(name, schema), sides)
        return self._step(name, spec, parallelism)

    def lookup(
        self,
        name: str | None,
        function: LookupFunction,
        on: str | Iterable[str],
        schema: Columns,
        *,
        how: LookupType = "left",
        in_flight_max: int = 100,
        timeout: str | dt.timedelta = "5s",
        cache_rows: int = 100_000,
        cache_ttl: str | dt.timedelta = "1m",
        parallelism: int | None = None,
    ) -> Self:
        """Add columns that ``await function(*key)`` finds for the values of columns: a join with an external store.

        Args:
            name: the step's name.
            function: an ``async def`` that takes the values of ``on`` and returns a dict of the columns of ``schema``,
                or None: there is nothing. It is not called for nulls. What it raises fails the job as errors of
                functions do.
            on: a column, or several.
            schema: columns that are added.
            how: "left": rows for which there is nothing have nulls; "inner": they are left out.
            in_flight_max: requests of a subtask that are under way at a time.
            timeout: of each request; one that takes longer counts as having raised.
            cache_rows: keys of a subtask whose answer is remembered; 0: none.
            cache_ttl: how long an answer counts.
            parallelism: subtasks; None: as many as the producer has.
        """
        try:
            timeout_ms, ttl_ms = duration_ms(timeout), duration_ms(cache_ttl)
        except GraphError as error:
            raise GraphError(f"step {name!r}: {error}") from error
        columns = tuple(on) if isinstance(on, Iterable) and not isinstance(on, str) else (on,)
        found = self._schema(name, schema)
        spec = LookupSpec(
            checked_callable(name, function),
            columns,
            found,
            how,
            in_flight_max,
            timeout_ms,
            cache_rows,
            ttl_ms,
        )
        return self._same_kind(name, spec, parallelism)

    def lookup_join(
        self,
        name: str | None,
        table: FileTable | CassandraTable,
        on: str | Iterable[str] | Mapping[str, str],
        *,
        how: LookupType = "left",
        columns: Iterable[str] | None = None,
        suffix: str = "_right",
        cache_rows: int = 100_000,
        cache_ttl: str | dt.timedelta = "1m",
        parallelism: int | None = None,
    ) -> Self:
        """Add the columns of a table's rows that have the key of a row, as the table is when the row comes.

        A row leaves once for each row of the table that has its key; a null matches nothing. The keys of a batch are
        looked up together, and what was found is remembered. See docs/joins.md.

        Args:
            name: the step's name.
            table: a :class:`weir.FileTable` or :class:`weir.CassandraTable`.
            on: columns that both have; or what columns of this stream are called in the table:
                ``{"customer": "id"}``.
            how: "left": rows without one of the table have nulls; "inner": they are left out.
            columns: those of the table that are added; None: all but its keys.
            suffix: is added to names that are there already.
            cache_rows: keys, and rows of the table, that a subtask remembers; 0: none.
            cache_ttl: how long an answer counts.
            parallelism: subtasks; None: as many as the producer has.

        Raises:
            GraphError: the table or a column is wrong.
        """
        if not isinstance(table, FileTable | CassandraTable):
            raise GraphError(
                f"step {name!r}: lookup_join takes a weir.FileTable or weir.CassandraTable, not "
                f"{type(table).__name__}; a stream is joined with join or join_as_of, a function with lookup"
            )
        try:
            outside, ttl_ms = table.to_spec(), duration_ms(cache_ttl)
        except GraphError as error:
            raise GraphError(f"step {name!r}: {error}") from error
        if isinstance(on, Mapping):
            pairs = tuple(on.items())
        else:
            pairs = tuple((each, each) for each in ([on] if isinstance(on, str) else on))
        chosen = None if columns is None else tuple([columns] if isinstance(columns, str) else columns)
        keys = tuple(key for _, key in pairs)
        added = added_columns(name, outside.schema, keys, chosen, self.schema, suffix)
        spec = LookupJoinSpec(outside, pairs, added, how, cache_rows, ttl_ms)
        return self._same_kind(name, spec, parallelism)


def _plain(step: str | None, function: Any) -> Any:
    return check_is_plain(step, checked_callable(step, function))
