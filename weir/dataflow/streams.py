"""Streams of the dataflow API: the steps and exchanges a job author chains. See ``weir.dataflow.builder``.

The classes return each other, so they stand together; their steps come from ``row_steps``, ``keyed_steps`` and others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from weir.dataflow.all_rows_windows import AllRowsWindowedStream
from weir.dataflow.count_windows import CountWindowedStream, TriggeredStream
from weir.dataflow.frame import NEEDS_KEY, after_step
from weir.dataflow.keyed_steps import KeyedSteps
from weir.dataflow.missing_names import MissingNameError, methods_of, missing_name
from weir.dataflow.row_steps import RowSteps
from weir.dataflow.windowed_streams import WindowedStream, checked_updates
from weir.dataflow.windows import Duration
from weir.errors import GraphError
from weir.plan.graph import Exchange, Input
from weir.plan.step_names import renamed_columns
from weir.specs import UnionSpec
from weir.specs.expression_checks import check_is_name, check_key_columns
from weir.specs.row_order import order_columns
from weir.specs.window_kinds import Window
from weir.specs.window_top import WindowTopPartSpec, WindowTopSpec
from weir.specs.window_updates import ResultMode, Trigger, WindowUpdates
from weir.specs.windows import WINDOW_BOUNDS, WindowAggregateSpec
from weir.spelling import did_you_mean

#: By how a name begins.
_MENDS = {
    "join": ", on both sides: a join is of rows with equal keys",
    "window": ", or window_all(...) for windows of all rows",
}


class Stream(RowSteps["Stream"]):
    """The output of a step, with the exchange that leads to the next one; several steps may read it.

    A method that adds a step returns the stream of that step's rows. All of them take:

    * ``name``: the step's name, unique in the job; state, metrics and dead letters are kept under it. None: the kind of
      the step and a number, such as ``filter_1``.
    * ``parallelism``: the number of the step's subtasks; None: as many as the step before it has.

    They raise ``weir.GraphError`` at once, naming the step, where it cannot work: a column that is not there, a type
    that does not fit, a name that is taken.
    """

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Say what is missing when a keyed stream's method is called without a key, or is called otherwise.

            Raises:
                AttributeError: always; of names that an author may have meant, with what to write.
            """
            node = self.__dict__.get("node")
            if name.startswith("_") or node is None:
                raise AttributeError(
                    f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
                )
            if name in NEEDS_KEY:
                raise MissingNameError(
                    f"step {node.name!r}: {name} goes by key, and this stream has none; call "
                    f'key_by("column").{name}(...)' + _MENDS.get(name.partition("_")[0], "")
                )
            raise missing_name(f"step {node.name!r}: a stream", name, [*methods_of(type(self)), *NEEDS_KEY])

    def side_output(self, name: str) -> Stream:
        """What the step yields with ``weir.side(name, ...)``, or says to be its side output, such as ``late``.

        The stream begins at the same step as this one, and has the columns that are declared for it. Watermarks,
        barriers and the end go to both.

        Raises:
            GraphError: the step has no such side output.
        """
        self.node.schema_of(name)
        self._refuse_second_exchange("side_output()")
        return Stream(self.flow, self.node, Input(self.node.name, output=name))

    def union(self, name: str | None, *others: Stream, parallelism: int | None = None) -> Stream:
        """Merge this stream with others that have the same columns; order is kept within each of them.

        Raises:
            GraphError: there is no other stream, one is of another ``Dataflow``, or the columns differ.
        """
        if not others:
            raise GraphError(f"step {name!r}: union needs at least one other stream")
        for other in others:
            if not isinstance(other, Stream) or other.flow is not self.flow:
                raise GraphError(f"step {name!r}: union takes streams of the same Dataflow")
        return self._step(name, UnionSpec(), parallelism, others)

    def key_by(
        self, *columns: str, own_stage: bool = False, renamed_from: Mapping[str, str] | None = None
    ) -> KeyedStream:
        """Bring all rows of a key to one subtask of the next step, in order (HASH).

        Rows that are there already, since an earlier ``key_by`` had the same columns, are not sent again: the next step
        joins the stage, unless it has another parallelism.

        Args:
            columns: the key.
            own_stage: the next step begins a stage in any case, for instance to be scaled alone.
            renamed_from: what key columns were called in the checkpoint that the job starts from, such as
                ``{"user": "k"}``: the state of the steps that go by this key goes on.

        Raises:
            GraphError: a column is absent or cannot be a key, or ``renamed_from`` tells of another one.
        """
        with after_step("key_by", self.node.name):
            check_key_columns(self.node.name, columns, self.schema)
            columns = renamed_columns(columns, renamed_from)
        exchange = replace(self._exchange(Exchange.HASH, columns), stage_boundary=bool(own_stage))
        return KeyedStream(self.flow, self.node, exchange, columns)

    def window_all(
        self,
        window: Window,
        *,
        allowed_lateness: Duration = 0,
        early: Trigger | None = None,
        results: ResultMode = "accumulating",
    ) -> AllRowsWindowedStream[Stream]:
        """Divide all rows by time, without a key: ``window_all(weir.tumbling("60s")).aggregate("n", n=weir.count())``.

        Args:
            window: as for :meth:`weir.KeyedStream.window`, and so are the others.
            allowed_lateness: for how long a window takes late rows.
            early: when a window tells what it has before it is complete.
            results: what the results of a window have after the first one.

        Raises:
            GraphError: it cannot be used.
        """
        with after_step("window_all", self.node.name):
            updates = checked_updates(self.node.name, window, allowed_lateness, early, results)
        return AllRowsWindowedStream(self, *updates)


class KeyedStream(KeyedSteps[Stream, "KeyedStream"], Stream):
    """A stream whose rows of one key are all on one subtask, so that state can be kept for the key."""

    def window(
        self,
        window: Window,
        *,
        allowed_lateness: Duration = 0,
        early: Trigger | None = None,
        results: ResultMode = "accumulating",
    ) -> WindowedStream[KeyedStream, WindowResults]:
        """Divide the rows of each key by time: ``window(weir.tumbling("60s")).aggregate("n", n=weir.count())``.

        Args:
            window: ``weir.tumbling``, ``weir.sliding``, ``weir.cumulative``, ``weir.session``, ``weir.global_window``.
            allowed_lateness: a window takes rows until the watermark is so much above its end, such as "10s", and tells
                its result again for them. Rows after that go to the side output ``late``.
            early: when a window tells what it has before it is complete: ``weir.every("10s")``; None: it does not.
            results: what the results of a window have after the first one. "accumulating": all its rows.
                "discarding": those since its last result. "changelog": they are changes, see docs/changelogs.md.

        Raises:
            GraphError: it cannot be used.
        """
        with after_step("window", self.node.name):
            updates = checked_updates(self.node.name, window, allowed_lateness, early, results)
        return WindowedStream(self, *updates, WindowResults.of)

    def count_window(self, rows: int, slide: int | None = None) -> CountWindowedStream[Self]:
        """The last ``rows`` rows of each key: ``count_window(100, 10).aggregate("n", high=weir.max("x"))``.

        Args:
            rows: of a window; the first ones of a key have fewer.
            slide: a window is complete whenever so many further rows have come; None: ``rows``.

        Raises:
            GraphError: these are no whole numbers above 0, or ``slide`` is larger.
        """
        with after_step("count_window", self.node.name):
            return CountWindowedStream(self, rows, slide)

    def triggered_window(self, trigger: Callable[[], Any]) -> TriggeredStream[Self]:
        """A window of each key that never ends, and tells and is emptied when code of your own says so.

        ``triggered_window(MyTrigger).aggregate("n", n=weir.count())``.

        Args:
            trigger: a :class:`weir.WindowTrigger` class, or what makes one; one is made for each subtask, and one when
                the job is built.

        Raises:
            GraphError: it makes none.
        """
        with after_step("triggered_window", self.node.name):
            return TriggeredStream(self, trigger)


class WindowResults(KeyedStream):
    """Results of windows: one row for each key and window."""

    @classmethod
    def of(cls, stream: KeyedStream) -> WindowResults:
        """Return the same rows as results of windows."""
        return cls(stream.flow, stream.node, None, stream.key_columns)

    def window_top(
        self,
        name: str,
        *,
        by: str | Sequence[str],
        rows: int = 1,
        ties: bool = False,
        key: str | Sequence[str] = (),
        ascending: bool | Sequence[bool] = False,
        nulls_first: bool | Sequence[bool] = False,
        rank: str | None = None,
        parallelism: int | None = None,
    ) -> KeyedStream:
        """The first rows of each window in an order, over all keys, when the window is complete.

        Every subtask chooses from what it has first, so few rows go over the network.

        Args:
            name: the step's name; the step that chooses first is called ``name.part``.
            by: the column whose largest values count; never nulls and NaN. Or a list of columns of any type, of which
                the first counts most: then null and NaN count, as in ``top``.
            rows: how many of each window.
            ties: also all rows that are equal to the last one in the order. Else equal ones go by the other columns.
            key: columns that divide the rows of a window: so many rows of each of their values.
            ascending: of a list of columns: the lowest go first; for all columns, or a list with one for each.
            nulls_first: of a list of columns: nulls go before all values; in the same way.
            rank: name of a column with the row's place in its window, from 1 on; with ``ties`` equal rows have one
                place in common. None: no such column.
            parallelism: subtasks that choose from all; None: as many as the producer has.

        Raises:
            GraphError: there is no such column, or ``rows`` is no number above 0.
        """
        is_plain = isinstance(by, str) and not key and rank is None and ascending is nulls_first is False
        if isinstance(by, str) or not isinstance(by, Sequence):
            check_is_name(f"step {name!r}: by", by)
            by = [str(by)]
        order = order_columns(name, by, ascending, nulls_first)
        for column in by:
            if column not in self.schema.names:
                near = did_you_mean(column, self.schema.names)
                raise GraphError(f"step {name!r}: there is no column {column!r}{near}")
        divides = (key,) if isinstance(key, str) else tuple(key)
        if divides:
            check_key_columns(name, divides, self.schema)
        if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
            raise GraphError(f"step {name!r}: rows is {rows!r}; it must be a whole number from 1 on")
        told = self.node.spec
        if isinstance(told, WindowAggregateSpec) and told.updates != WindowUpdates():
            raise GraphError(
                f"step {name!r}: window_top needs windows with one result; leave early and allowed_lateness out, or "
                "tell them with results='changelog' and write key_by('window_start', 'window_end').top(...), which "
                "keeps all windows"
            )
        for column in WINDOW_BOUNDS:
            if column not in self.schema.names:
                raise GraphError(f"step {name!r}: column {column!r} of the window is gone; keep it")
        if is_plain:
            order = ()
        keys = (*WINDOW_BOUNDS, *(each for each in divides if each not in WINDOW_BOUNDS))
        part = self._same_kind(f"{name}.part", WindowTopPartSpec(by[0], rows, ties, order, keys[2:]), None)
        keyed = part.key_by(*keys)
        spec = WindowTopSpec(keys, by[0], rows, ties, keyed.schema, order, keys[2:], rank)
        return keyed.keyed_step(name, spec, parallelism)
