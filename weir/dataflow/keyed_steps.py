"""Steps of the dataflow API that keep state by key: aggregates, rows of a key, and users' keyed operators."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

import pyarrow as pa

from weir.author.broadcast_process import HoldUntil, broadcast_form, checked_hold
from weir.author.keyed_process import process_form
from weir.author.states import DeclaredState, declared_states
from weir.author.timer_hooks import timer_states
from weir.dataflow.aggregates import AggregateCall, listed_aggregates
from weir.dataflow.frame import Columns, KeyedT, StreamT, checked_callable
from weir.dataflow.join_steps import JoinSteps
from weir.dataflow.row_steps import RowSteps
from weir.errors import GraphError
from weir.plan.graph import Exchange
from weir.plan.step_names import renamed_step
from weir.rows.changes import is_changelog
from weir.specs import (
    Aggregate,
    ChangelogTopSpec,
    EmitMode,
    KeyedAggregateSpec,
    KeyedProcessSpec,
    TopSpec,
)
from weir.specs.broadcast import BroadcastProcessSpec
from weir.specs.changelog_aggregates import ChangelogAggregateSpec
from weir.specs.changes import deduplicate_spec, is_number_or_time
from weir.specs.expression_checks import check_is_name, check_key_columns
from weir.specs.row_order import order_columns
from weir.state.ttl import duration_ms
from weir.state.types import describe


class KeyedSteps(JoinSteps[StreamT, KeyedT]):
    """Steps of keyed streams but windows."""

    def count(
        self,
        name: str | None,
        output: str | None = None,
        *,
        emit: EmitMode = "per_event",
        parallelism: int | None = None,
    ) -> Self:
        """Running number of rows of the key (int64), in column ``output``: the step's name unless given.

        A step without a name writes column "count".
        """
        return self._aggregate(name, {output or name or "count": AggregateCall("count")}, emit, parallelism)

    def aggregate(
        self,
        name: str | None,
        *,
        emit: EmitMode = "per_event",
        parallelism: int | None = None,
        renamed_from: str | None = None,
        **aggregates: AggregateCall,
    ) -> Self:
        """Running aggregates of the key: ``aggregate("totals", n=weir.count(), bytes=weir.sum("size"))``.

        Over a changelog the result is a changelog too, with one row for each key that has rows: its key columns and the
        aggregates of the rows that are there (count, sum, mean, min, max). A batch tells each key once.

        Args:
            name: the step's name; its state belongs to it.
            emit: "per_event": each row, values after it; "per_batch": each key's last row of a batch.
            parallelism: subtasks; None: as many as the producer has.
            aggregates: output column -> function, with ``.where(...)`` over some of the rows; the columns are appended
                to the input's.
            renamed_from: what the step was called in the checkpoint that the job starts from: its state goes on.
        """
        name = renamed_step(name, renamed_from)
        return self._aggregate(name, aggregates, emit, parallelism)

    def _aggregate(
        self,
        name: str | None,
        aggregates: Mapping[str, AggregateCall],
        emit: EmitMode,
        parallelism: int | None,
    ) -> Self:
        if emit not in ("per_event", "per_batch"):
            raise GraphError(f"step {name!r}: emit is {emit!r}; it is 'per_event' or 'per_batch'")
        listed = listed_aggregates(name, Aggregate, aggregates)
        if is_changelog(self.schema):
            return self._same_kind(name, ChangelogAggregateSpec(self.key_columns, listed), parallelism)
        return self._same_kind(name, KeyedAggregateSpec(self.key_columns, listed, emit), parallelism)

    def deduplicate(
        self,
        name: str | None,
        *,
        keep: Literal["first", "last"] = "first",
        within: str | dt.timedelta | None = None,
        by: str | None = None,
        parallelism: int | None = None,
        renamed_from: str | None = None,
    ) -> Self:
        """Keep one row of each key.

        Args:
            name: the step's name; its state belongs to it.
            keep: "first": the row that comes first is passed on at once, all others are dropped. "last": the row with
                the highest event time, of equals the one that comes last; the result is a changelog.
            within: with "first": a row is passed on again if its event time is so much, such as "10m", above that of
                the key's row that was passed on before, which is forgotten when the watermark has come so far. None:
                each key is passed on once, and remembered for ever.
            by: column with a number, a date or a time, needed over a changelog: "first" keeps the row with the lowest
                value, of equals the one that came first, "last" the one with the highest, of equals the one that came
                last; nulls and NaN come after all others. Of a changelog equals go by their columns in order, each
                ascending with nulls last. The result is a changelog. None: event time, as ``keep`` says.
            parallelism: subtasks; None: as many as the producer has.
            renamed_from: what the step was called in the checkpoint that the job starts from: its state goes on.

        Raises:
            GraphError: these do not go together, or the input is a changelog and ``by`` is absent.
        """
        name = renamed_step(name, renamed_from)
        try:
            within_ms = None if within is None else duration_ms(within)
        except GraphError as error:
            raise GraphError(f"step {name!r}: within: {error}") from error
        spec = deduplicate_spec(str(name), self.key_columns, self.schema, keep, within_ms, by)
        return self._same_kind(name, spec, parallelism)

    def top(
        self,
        name: str | None,
        *,
        by: str | Sequence[str],
        rows: int,
        ascending: bool | Sequence[bool] = False,
        nulls_first: bool | Sequence[bool] = False,
        rank: str | None = None,
        parallelism: int | None = None,
        renamed_from: str | None = None,
    ) -> Self:
        """The first rows of each key in the order of one or several columns, as a changelog (``weir.rows.changes``).

        Of rows that are equal in the order, those that came first go first. Of a changelog they go by their columns in
        order, each ascending with nulls last, and all rows of each key are kept, since those that follow come up when
        one is taken away.

        Args:
            name: the step's name; its state belongs to it.
            by: a column, or a list of them, of which the first counts most; the highest go first. Of one column of
                numbers, dates or times nulls and NaN go last. Of a list, or of a column of another type, NaN is above
                all numbers, and nulls go last unless ``nulls_first`` says otherwise.
            rows: how many rows of each key.
            ascending: the lowest go first; for all columns, or a list with one for each.
            nulls_first: nulls go before all values; in the same way.
            rank: name of a column with the row's place, from 1 on. Then a row that enters changes all places after its
                own; without it, it takes the place of one other row. None: no such column.
            parallelism: subtasks; None: as many as the producer has.
            renamed_from: what the step was called in the checkpoint that the job starts from: its state goes on.
        """
        name = renamed_step(name, renamed_from)
        kind = ChangelogTopSpec if is_changelog(self.schema) else TopSpec
        if isinstance(by, str) or not isinstance(by, Sequence):
            check_is_name(f"step {name!r}: by", by)
            names, is_known = [str(by)], by in self.schema.names
            is_plain = not is_known or is_number_or_time(self.schema.field(by).type)
            if is_plain and nulls_first is False and not isinstance(ascending, Sequence):
                plain = kind(self.key_columns, str(by), rows, bool(ascending), rank)
                return self._same_kind(name, plain, parallelism)
        else:
            names = list(by)
        order = order_columns(str(name), names, ascending, nulls_first)
        spec = kind(self.key_columns, order[0].name, rows, order[0].ascending, rank, order=order)
        return self._same_kind(name, spec, parallelism)

    def connect_broadcast(
        self,
        name: str | None,
        rules: RowSteps[Any],
        factory: Callable[[], Any],
        schema: Columns | None = None,
        *,
        hold_until: HoldUntil | None = None,
        in_time_order: bool | None = None,
        side_outputs: Mapping[str, Columns | None] | None = None,
        parallelism: int | None = None,
        renamed_from: str | None = None,
    ) -> StreamT:
        """Run a :class:`weir.BroadcastProcess` of your own over this stream and a stream that every subtask gets whole.

        Args:
            name: the step's name; its state belongs to it.
            rules: few rows; each one goes to ``on_broadcast`` of every subtask.
            factory: makes one process per subtask, as for :meth:`process`.
            schema: user columns of the result; None: those of this stream.
            hold_until: rows wait, and with them the watermark, until there are rules. "first": until the dict has an
                item. A function of the dict: until it returns True. Once it is so it stays so, also after a restart.
                When the stream of rules has ended, nothing waits any more. None: rows do not wait.
            in_time_order: as for :meth:`process`, of the rows; not together with ``hold_until``.
            side_outputs: as for :meth:`process`.
            parallelism: subtasks; None: as many as this stream's step has.
            renamed_from: what the step was called in the checkpoint that the job starts from: its state goes on.

        Raises:
            GraphError: ``key_by`` does not come right before it, or the stream or the factory cannot be used.
        """
        name = renamed_step(name, renamed_from)
        if self.input.exchange is not Exchange.HASH:
            raise GraphError(f"step {name!r}: call key_by right before connect_broadcast")
        if not isinstance(rules, RowSteps) or rules.flow is not self.flow:
            raise GraphError(f"step {name!r}: connect_broadcast takes a stream of the same Dataflow")
        if rules.input.exchange is not Exchange.BROADCAST:
            rules = rules.broadcast()
        made = checked_callable(name, factory)
        if in_time_order and hold_until is not None:
            raise GraphError(
                f"step {name!r}: rows wait for rules (hold_until) or for others (in_time_order); give one of them"
            )
        spec = BroadcastProcessSpec(
            **self._process_parts(name, made, schema, side_outputs, broadcast_form),
            hold_until=checked_hold(name, hold_until),
            in_time_order=checked_order(name, in_time_order),
        )
        return self._step(name, spec, parallelism, (rules,))

    def _process_parts(
        self,
        name: str | None,
        factory: Callable[[], Any],
        schema: Columns | None,
        side_outputs: Mapping[str, Columns | None] | None,
        check: Callable[[type], object],
    ) -> dict[str, Any]:
        """The fields of a :class:`KeyedProcessSpec`; ``check`` refuses a class that cannot be used."""
        states = process_states(str(name), factory, check)
        # Keys are read from the store for timers, and where rules change the state of every key.
        reads_keys = any(state.kind == "timers" or check is broadcast_form for state in states)
        key_schema = pa.schema([self.schema.field(column) for column in self.key_columns])
        return {
            "key_columns": self.key_columns,
            "factory": factory,
            "schema": self._schema(name, schema),
            "states": states,
            "key_schema": key_schema if reads_keys else None,
            "side_outputs": self._side_outputs(name, side_outputs),
        }

    def process(
        self,
        name: str | None,
        factory: Callable[[], Any],
        schema: Columns | None = None,
        *,
        in_time_order: bool | None = None,
        side_outputs: Mapping[str, Columns | None] | None = None,
        parallelism: int | None = None,
        renamed_from: str | None = None,
    ) -> Self:
        """Run a :class:`weir.KeyedProcess` of your own, which must leave the key columns as they are.

        Args:
            name: the step's name; its state belongs to it.
            factory: makes one process per subtask: the class, or ``functools.partial(MyProcess, setting=1)``. Another
                function is called once when the job is built, to see which states the process declares.
            schema: user columns of the result, the key columns among them; None: those of the input.
            in_time_order: rows that come from several subtasks, or inputs, wait until all of these have come as far by
                event time, so that a timer fires before the rows that come after it, whichever subtask is faster. None:
                if the process has timers, and all sources before it end. False: they are taken as they come.
            side_outputs: as for :meth:`apply`; ``process`` and ``on_timer`` send dicts to them with
                ``yield weir.side(output, row)``.
            parallelism: subtasks; None: as many as the producer has.
            renamed_from: what the step was called in the checkpoint that the job starts from: its state goes on.

        Raises:
            GraphError: the factory makes no keyed process, or the result lacks a key column or has one of another type.
        """
        name = renamed_step(name, renamed_from)
        made = checked_callable(name, factory)
        spec = KeyedProcessSpec(
            **self._process_parts(name, made, schema, side_outputs, process_form),
            in_time_order=checked_order(name, in_time_order),
        )
        absent = [column for column in self.key_columns if column not in spec.schema.names]
        if absent:
            raise GraphError(
                f"step {name!r}: its declared result lacks key column {absent[0]!r}, which it must pass on; add it to "
                "the schema"
            )
        check_key_columns(str(name), self.key_columns, spec.schema)
        return self._same_kind(name, spec, parallelism)


def checked_order(step: str | None, in_time_order: object) -> bool | None:
    """What an author says of the order of rows.

    Raises:
        GraphError: it is neither True nor False nor None.
    """
    if in_time_order is None or isinstance(in_time_order, bool):
        return in_time_order
    raise GraphError(f"step {step!r}: in_time_order is {in_time_order!r}; it is True, False or None")


def process_states(
    step: str, factory: Any, check: Callable[[type], object] = process_form
) -> tuple[DeclaredState, ...]:
    """The states that a user's keyed operator declares, by name; ``check`` refuses its class if it cannot be used.

    Raises:
        GraphError: the operator or a name cannot be used; the message names the step.
    """
    made = factory
    while isinstance(made, functools.partial):
        made = made.func
    if not isinstance(made, type):
        try:
            made = type(factory())
        except Exception:
            # It raises in a subtask, too, where it is told what a factory has to be.
            return ()
    try:
        check(made)
        states = declared_states(made)
        timers = timer_states(made)
    except GraphError as error:
        raise GraphError(f"step {step!r}: {error}") from error
    declared = (
        DeclaredState(state.name, state.kind, describe(state.form), state.renamed_from) for state in states
    )
    return (*declared, *timers)
