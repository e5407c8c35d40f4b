"""Joins of the dataflow API. See ``weir.dataflow.streams``."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, Literal

import pyarrow as pa

from weir.dataflow.frame import KeyedFrame, KeyedT, StreamT
from weir.dataflow.join_arguments import join_bounds
from weir.errors import GraphError
from weir.plan.step_names import renamed_step
from weir.rows.changes import is_changelog
from weir.specs import AsOfJoinSpec, ChangeJoinSpec, JoinSpec, JoinType
from weir.specs.joins import JoinBounds, JoinedColumns, joined_columns
from weir.specs.multi_joins import INPUTS_MAX, ChangeMultiJoinSpec, MultiJoinSpec, columns_of_all
from weir.specs.window_kinds import Window


class JoinSteps(KeyedFrame[StreamT, KeyedT]):
    """Steps that bring rows of several keyed streams together."""

    def join(
        self,
        name: str | None,
        right: KeyedFrame[Any, Any],
        *,
        within: tuple[Any, Any] | None = None,
        between: tuple[str, str] | None = None,
        window: Window | None = None,
        ttl: str | dt.timedelta | None = None,
        how: JoinType = "inner",
        suffix: str = "_right",
        parallelism: int | None = None,
        renamed_from: str | None = None,
    ) -> KeyedT:
        """Pair rows of this stream (left) with those of another (right) that have the same key; see docs/joins.md.

        The result has the key columns as they are called here, the other columns of the left side, and those of the
        right side; its event time is the later one of the pair. Without any of ``within``, ``between``, ``window`` and
        ``ttl`` all rows are kept. Then both streams may be changelogs, and the result is one if either is, or if
        ``how`` is neither "inner" nor "semi" (see docs/changelogs.md).

        Args:
            name: the step's name; the rows that it keeps belong to it.
            right: a keyed stream; its key columns may have other names.
            within: only if the right row's event time is from the left's plus the first to the left's plus the second,
                both included: ``("-10s", "0s")``.
            between: only if the event time of the row of one side is between these two columns of the other.
            window: only if the two are in the same tumbling window: ``weir.tumbling("10s")``; of sliding windows a pair
                leaves once for each that both are in, with ``window_start`` and ``window_end``.
            ttl: only if the two event times are not farther apart than this.
            how: "inner"; "left", "right" and "full" also give rows without a partner; "semi" gives left rows with one,
                once each, and "anti" those without.
            suffix: is added to names of right columns that are there on the left.
            parallelism: subtasks; None: as many as the left side's producer has.
            renamed_from: what the step was called in the checkpoint that the job starts from: its state goes on.

        Raises:
            GraphError: the two cannot be joined.
        """
        name = renamed_step(name, renamed_from)
        self._check_right(name, right)
        bounds = join_bounds(str(name), self.schema, right.schema, within, between, window, ttl)
        columns = self._joined_columns(name, right, how, suffix)
        is_updated = how not in ("inner", "semi") or is_changelog(self.schema) or is_changelog(right.schema)
        kind = ChangeJoinSpec if bounds is None and is_updated else JoinSpec
        spec = kind(self.key_columns, right.key_columns, how, bounds, *columns)
        return self._joined(name, spec, (right,), parallelism)

    def join_all(
        self,
        name: str | None,
        *others: KeyedFrame[Any, Any],
        within: str | dt.timedelta | None = None,
        window: Window | None = None,
        how: Literal["inner", "left"] = "inner",
        suffixes: Sequence[str] | None = None,
        parallelism: int | None = None,
        renamed_from: str | None = None,
    ) -> KeyedT:
        """Combine rows of this stream with those of several others that have the same key; see docs/joins.md.

        The result is that of joins one after the other, but it is one step: the rows of each stream are kept, not the
        results of joins between. Without ``within`` and ``window`` all rows are kept. Then the streams may be
        changelogs, and the result is one if any of them is, or if ``how`` is "left" (see docs/changelogs.md).

        Args:
            name: the step's name; the rows that it keeps belong to it.
            others: keyed streams, two at least; their key columns may have other names.
            within: only if no two event times are farther apart than this.
            window: only if all are in the same tumbling window.
            how: "inner"; "left": rows of this stream leave also if others have none that go with them; the columns of
                these are null then. Not with ``within``.
            suffixes: for each of the others what is added to names that are there already; None: ``_2``, ``_3`` ...
            parallelism: subtasks; None: as many as this stream's producer has.
            renamed_from: what the step was called in the checkpoint that the job starts from: its state goes on.

        Raises:
            GraphError: they cannot be joined.
        """
        name = renamed_step(name, renamed_from)
        for other in others:
            self._check_right(name, other)
        if not 2 <= len(others) < INPUTS_MAX:
            raise GraphError(
                f"step {name!r}: join_all takes 2 to {INPUTS_MAX - 1} other streams, not {len(others)}; two streams "
                "are joined with join"
            )
        given = tuple(suffixes or (f"_{number}" for number in range(2, len(others) + 2)))
        if len(given) != len(others):
            raise GraphError(
                f"step {name!r}: {len(given)} suffixes are given for {len(others)} other streams; give one for each"
            )
        bounds = _bounds_of_all(name, self.schema, within, window)
        streams = (self, *others)
        keys = [stream.key_columns for stream in streams]
        columns = columns_of_all(str(name), [stream.schema for stream in streams], keys, given)
        is_updated = how != "inner" or any(is_changelog(stream.schema) for stream in streams)
        kind = ChangeMultiJoinSpec if bounds is None and is_updated else MultiJoinSpec
        spec = kind(
            *(keys[0], keys[1], how, None, columns[0], columns[1], tuple(keys[2:]), tuple(columns[2:])),
            span_ms=None if bounds is None else bounds.upper_ms,
            window_ms=None if bounds is None else bounds.window_ms,
            offset_ms=0 if bounds is None else bounds.offset_ms,
        )
        return self._joined(name, spec, others, parallelism)

    def join_as_of(
        self,
        name: str | None,
        right: KeyedFrame[Any, Any],
        *,
        how: Literal["left", "inner"] = "left",
        suffix: str = "_right",
        parallelism: int | None = None,
        renamed_from: str | None = None,
    ) -> KeyedT:
        """Give each row the latest row of another stream (right) with the same key that is not after it, by event time.

        The right stream is a table that changes: each of its rows replaces the one before. It may be a changelog, whose
        deleted rows end a version. A row leaves when the
        watermark has passed it, with its own event time; see docs/joins.md.

        Args:
            name: the step's name; versions and rows that wait belong to it.
            right: a keyed stream; its key columns may have other names.
            how: "left": rows before the first version leave too, right columns null; "inner": they do not.
            suffix: is added to names of right columns that are there on the left.
            parallelism: subtasks; None: as many as the left side's producer has.
            renamed_from: what the step was called in the checkpoint that the job starts from: its state goes on.

        Raises:
            GraphError: the two cannot be joined.
        """
        name = renamed_step(name, renamed_from)
        self._check_right(name, right)
        columns = self._joined_columns(name, right, how, suffix)
        spec = AsOfJoinSpec(self.key_columns, right.key_columns, how, None, *columns)
        return self._joined(name, spec, (right,), parallelism)

    def _check_right(self, name: str | None, right: KeyedFrame[Any, Any]) -> None:
        if not isinstance(right, KeyedFrame) or right.flow is not self.flow:
            raise GraphError(
                f"step {name!r}: join takes a stream of the same Dataflow after key_by(...): "
                "join(name, other.key_by(...))"
            )

    def _joined_columns(
        self, name: str | None, right: KeyedFrame[Any, Any], how: str, suffix: str
    ) -> JoinedColumns:
        return joined_columns(
            str(name), self.schema, right.schema, self.key_columns, right.key_columns, how, suffix
        )

    def _joined(
        self,
        name: str | None,
        spec: JoinSpec,
        others: tuple[KeyedFrame[Any, Any], ...],
        parallelism: int | None,
    ) -> KeyedT:
        streams = tuple(other.partitioned() for other in others)
        return self.partitioned().keyed_step(name, spec, parallelism, streams)


def _bounds_of_all(name: str | None, schema: pa.Schema, within: Any, window: Any) -> JoinBounds | None:
    """The bounds of a join of several streams; None: it has none."""
    if within is not None and window is not None:
        raise GraphError(f"step {name!r}: within and window are given; give one of them")
    # A duration on both sides of a row's time, as of a join of two streams.
    bounds = join_bounds(str(name), schema, schema, None, None, window, within, ttl_name="within")
    if bounds is not None and bounds.slide_ms is not None:
        raise GraphError(
            f"step {name!r}: window is a sliding one, and join_all takes tumbling ones; else say within=, how far "
            "apart any two rows may be"
        )
    return bounds
