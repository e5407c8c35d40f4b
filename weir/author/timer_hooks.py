"""What a keyed process has to be called with when a timer fires, and the states that its timers are kept in. Inert."""

from __future__ import annotations

from weir.author.keyed_process import KeyedHooks, TimerTime, takes
from weir.author.states import DeclaredState
from weir.errors import GraphError

#: Names of the states that timers are kept in.
EVENT_TIMERS = "_event_timers"
PROCESSING_TIMERS = "_processing_timers"
#: What their entries mean, for checkpoints: (time, key) pairs, version 1.
TIMERS_FORM = {"version": 1}
#: By ``timer_time``, the states that are kept.
_STATES: dict[TimerTime, tuple[str, ...]] = {
    "any": (EVENT_TIMERS, PROCESSING_TIMERS),
    "processing": (PROCESSING_TIMERS,),
}
#: By name of a hook, how many arguments it takes besides ``self``, and which.
_HOOKS = {"on_timer": (3, "(self, key, time_ms, context)"), "on_timers": (2, "(self, batch, context)")}


def timer_hooks(kind: type[KeyedHooks]) -> frozenset[str]:
    """Which of ``on_timer`` and ``on_timers`` a class has.

    Raises:
        GraphError: one cannot be called as it is.
    """
    hooks = frozenset(name for name in _HOOKS if getattr(kind, name) is not getattr(KeyedHooks, name))
    for name in hooks:
        count, told = _HOOKS[name]
        if not takes(getattr(kind, name), count):
            raise GraphError(f"{kind.__name__}: {name} is called with {told}; it cannot be")
    return hooks


def timer_states(kind: type[KeyedHooks]) -> tuple[DeclaredState, ...]:
    """The states that the timers of a class are kept in; empty if it has nothing to be called when one fires.

    Raises:
        GraphError: that cannot be called as it is, or the class has a ``timer_time`` that there is not.
    """
    if kind.timer_time not in _STATES:
        known = " or ".join(map(repr, _STATES))
        raise GraphError(f"{kind.__name__}: timer_time is {kind.timer_time!r}; it is {known}")
    if not timer_hooks(kind):
        return ()
    return tuple(DeclaredState(name, "timers", "times") for name in _STATES[kind.timer_time])
