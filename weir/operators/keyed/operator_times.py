"""The times that TTLs of a keyed operator's states go by, in its snapshots: what a restored operator goes on with.

Beside the codec (``weir.operators.keyed.state_codec``), a snapshot of an operator that has a state with a TTL holds::

    "times": {"watermark_ms": 1700000000000, "since_ms": {"seen": 1699999990000}, "first_ms": {"seen": 1699999995001}}

and ``"passed_ms"``, where that is not the same: the watermark that nothing still to come is behind, or null
(``first_ms``: before when entries have expired, for a job that is changed: ``weir.protocol.checkpoints.horizons``)

and the form of a state whose values have times in the store says so: ``{"kind": "value", "type": "int64", "stamps":
"event"}``, also when the state has a TTL no more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from weir.author.operator import Json, OperatorContext
from weir.author.states import State
from weir.errors import StateMismatchError
from weir.protocol.checkpoints.horizons import Horizon
from weir.state.tables.state_times import StateTimes


class OperatorTimes:
    """Times of a keyed operator in a subtask."""

    def __init__(self, states: Sequence[State], horizons: Iterable[Horizon] = ()) -> None:
        """``states``: that the operator declares, as ``outlasting``; ``horizons``: how far back these reach."""
        self._states = states
        self._first_ms = {each.state: each.first_ms for each in horizons}
        #: In which kind of time the entries of states in the store have times.
        self._stamps: dict[str, str] = {}
        #: None: no state has a TTL.
        self._times: StateTimes | None = None

    def check(self, context: OperatorContext, snapshot: Mapping[str, Any]) -> None:
        """Check that a snapshot's times go on.

        Raises:
            StateMismatchError: a state had a TTL in the other kind of time.
        """
        forms = snapshot["codec"].get("states", {})
        for state in self._states:
            before = forms.get(state.name, {}).get("stamps")
            if state.ttl is not None and before and before != state.ttl.time:
                raise StateMismatchError(
                    f"step {context.operator_name!r}: state {state.name!r} has times of {before} time in the "
                    f"checkpoint, its ttl now says time={state.ttl.time!r}; declare it as it was, or give the state "
                    "another name if it may begin empty"
                )

    def restore(self, context: OperatorContext, kept: Iterable[Mapping[str, Any]]) -> None:
        """Go on where a checkpoint ends; called before the states are opened.

        Args:
            context: of the operator.
            kept: the snapshots that it starts from.

        Raises:
            StateMismatchError: a state had a TTL in the other kind of time.
        """
        listed = list(kept)
        for snapshot in listed:
            self.check(context, snapshot)
        for snapshot in listed:
            for name, form in snapshot["codec"].get("states", {}).items():
                if form.get("stamps"):
                    self._stamps[name] = form["stamps"]
        timed = [state for state in self._states if state.ttl is not None]
        for state in timed:
            assert state.ttl is not None
            self._stamps.setdefault(state.name, state.ttl.time)
        if timed and context.tables is not None:
            self._times = context.tables.times
            names = {state.name for state in timed}
            self._times.begin(
                context.clock,
                [_of_states(part["times"], names) for part in listed if "times" in part],
                self._first_ms,
            )

    @property
    def of_rows(self) -> StateTimes | None:
        """The times, if a state that is open minds those of rows; None: none does."""
        return self._times if self._times is not None and self._times.go_by_rows else None

    def announce(self, watermark_ms: int) -> None:
        """The operator's watermark is about to rise; called before timers fire."""
        if self._times is not None:
            self._times.announce(watermark_ms)

    def advance(self, watermark_ms: int) -> None:
        """The operator's watermark has risen; called when timers have fired."""
        if self._times is not None:
            self._times.advance(watermark_ms)

    def forms(self) -> Json:
        """Kind, type and times of each state, by name, for the codec."""
        found: dict[str, Json] = {}
        for state in self._states:
            found[state.name] = {"kind": state.kind, "type": state.form}
            if state.name in self._stamps:
                found[state.name]["stamps"] = self._stamps[state.name]
        return found

    def to_json(self) -> dict[str, Json]:
        """What the snapshot holds besides."""
        return {} if self._times is None else {"times": self._times.to_json()}


def _of_states(times: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Leave out what is known of states that had no TTL in between: their values count as written now."""
    return {**times, "since_ms": {name: at for name, at in times["since_ms"].items() if name in names}}
