"""Forty changes of each kind of step, and what comes of each: it goes on, or is refused with words that are told."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

import weir
from benchmarks.changed.jobs import Settings
from benchmarks.changed.processes import Must, Small, Wide
from benchmarks.changed.rows import SCHEMA
from weir.specs.row_order import OrderColumn

#: Every column is kept by joins and the like, so one more is refused there.
_ROWS_KEPT = ("join", "top", "changelog")
#: These, and steps before which whole rows wait.
_ALL_KEPT = (*_ROWS_KEPT, "over")
COLUMNS = tuple(SCHEMA)
#: Of messages about the key of a step.
BY = r" by |keys"


@dataclass(frozen=True)
class Change:
    """Settings of a job before and after."""

    name: str
    before: Settings
    after: Settings
    #: A part of the message that refuses it; "": the job goes on.
    refused: str = ""
    #: It is started with leave to drop what the job has no more.
    drops: bool = False


#: Types of keys whose values have bytes of one kind and mean something else, by their names in messages.
_KEY_TYPES: Mapping[str, Mapping[str, Any]] = {
    "code": {"int64": int, "uint64": pl.UInt64, "bool": bool, "timestamp[ms]": pl.Datetime("ms")},
    "word": {"string": str, "binary": bytes},
}


def _other_keys(kind: str) -> list[tuple[str, tuple[str, Any], tuple[str, Any]]]:
    """A column, its type before, and its type after, each with its name."""
    return [
        (column, then, now)
        for column, types in _KEY_TYPES.items()
        for then in types.items()
        for now in types.items()
        # One type is the integers that the others are taken for.
        if then[0] != now[0] and (column == "word" or "int64" in (then[0], now[0]))
        # Rows that are kept have all their types.
        if kind not in _ALL_KEPT or now[0] == "bool"
    ]


def _common(kind: str) -> list[Change]:
    """What may happen to every step."""
    kept = "columns|rows of" if kind in _ROWS_KEPT else ""
    # Rows that wait may have columns too many, in any order, and none of another type.
    waiting = "rows are of types" if kind == "over" else kept
    # Key columns are among the columns of rows that are kept, with their types.
    typed = "keys|rows" if kind in _ALL_KEPT else ""
    # SQL, which makes these steps, has no such renaming.
    renamed = "rows are of types" if kind == "over" else ""
    pair, code = {"key": ("k", "word")}, {"key": ("code",)}
    user = {"names": {"k": "user"}}
    is_32, is_64 = {**code, "types": {"code": pl.Int32}}, {**code, "types": {"code": int}}
    return [
        Change("nothing", {}, {}),
        Change("another name of the job", {}, {"job": "other"}),
        Change("step renamed", {}, {"step": "now", "renamed_from": "step"}),
        Change("step renamed without a word", {}, {"step": "now"}, "--allow-dropped-state"),
        Change("step renamed and back", {"step": "now"}, {"renamed_from": "now"}),
        Change("more subtasks", {}, {"parallelism": 3}),
        Change("fewer subtasks", {"parallelism": 3}, {"parallelism": 1}),
        Change("two subtasks of three", {"parallelism": 3}, {"parallelism": 2}),
        Change("a stage of its own", {}, {"own_stage": True}),
        Change("other key groups", {}, {"groups": 32}, "16 key groups"),
        Change("source renamed", {}, {"source": "input", "source_from": "events"}),
        Change("source renamed without a word", {}, {"source": "input"}, "--allow-dropped-state"),
        Change("column added", {}, {"columns": (*COLUMNS, "more")}, waiting),
        Change("column removed", {}, {"columns": tuple(n for n in COLUMNS if n != "x")}, kept),
        Change("columns in another order", {}, {"columns": COLUMNS[::-1]}, kept),
        Change("column widened", {"types": {"code": pl.Int32}}, {}, waiting),
        Change("column narrowed", {}, {"types": {"code": pl.Int32}}, waiting),
        Change("condition before it", {}, {"where": "bad"}),
        Change("condition before it dropped", {"where": "bad"}, {}),
        Change("another condition before it", {"where": "bad"}, {"where": "in"}),
        Change("condition in its stage", {}, {"within_stage": "bad"}),
        Change("condition in its stage dropped", {"within_stage": "bad"}, {}),
        Change("branch before it", {}, {"ahead": True}),
        Change("branch before it dropped", {"ahead": True}, {}),
        Change("key changed", {}, {"key": ("word",)}, BY),
        Change("key of another type", {}, code, BY),
        Change("key with a column more", {}, pair, BY),
        Change("key with a column less", pair, {}, BY),
        Change("key in another order", pair, {"key": ("word", "k")}, BY),
        Change("key widened", is_32, is_64, typed),
        Change("key narrowed", is_64, is_32, "int64.*int32"),
        *(
            Change(
                f"key {then} to {now}",
                {"key": (column,), "types": {column: before}},
                {"key": (column,), "types": {column: after}},
                # Both forms are named.
                f"{re.escape(then)}.*{re.escape(now)}",
            )
            for column, (then, before), (now, after) in _other_keys(kind)
        ),
        Change("key renamed", {}, {**user, "keys_from": {"user": "k"}}, renamed),
        Change("a key of two renamed", pair, {**pair, **user, "keys_from": {"user": "k"}}, renamed),
        Change("key renamed without a word", {}, user, BY),
        Change("step added", {}, {"beside": ("count",)}),
        Change("step removed", {"beside": ("count",)}, {}, "--allow-dropped-state"),
        Change("step removed with leave", {"beside": ("count",)}, {}, drops=True),
    ]


N, BAD, TOTAL = ("count",), ("count", "", "bad"), ("sum", "num")
MEAN, USERS, ABOUT = ("mean", "x"), ("count_distinct", "word"), ("count_distinct", "num")


def _aggregates() -> list[Change]:
    """Of running aggregates and of windows."""

    def change(name: str, before: Mapping[str, Any], after: Mapping[str, Any], *more: Any) -> Change:
        return Change(name, {"aggregates": before}, {"aggregates": after}, *more)

    both = {"n": N, "bad": BAD}
    return [
        change("order", both, {"bad": BAD, "n": N}),
        change("order of all", {"n": N, "m": MEAN, "t": TOTAL}, {"t": TOTAL, "n": N, "m": MEAN}),
        change("added at the end", {"n": N}, {"n": N, "t": TOTAL}),
        change("added at the beginning", both, {"t": TOTAL, **both}),
        change("nine added", {"n": N}, {"n": N, **{f"n{number}": TOTAL for number in range(9)}}),
        change("two cells added", {"t": TOTAL}, {"m": MEAN, "t": TOTAL}),
        change("part added", {"n": N}, {"users": USERS, "n": N}),
        change("removed without leave", both, {"bad": BAD}, "n=count.*--allow-dropped-state"),
        change("removed", both, {"bad": BAD}, "", True),
        change("last removed", {"n": N, "m": MEAN}, {"n": N}, "", True),
        change("removed and added", {"n": N, "m": MEAN, "bad": BAD}, {"t": TOTAL, "bad": BAD}, "", True),
        change("parts in another order", {"a": USERS, "b": ABOUT}, {"b": ABOUT, "a": USERS}),
        change("part removed", {"a": USERS, "b": ABOUT}, {"b": ABOUT}, "", True),
        change("other condition", both, {"n": N, "bad": ("count", "", "abc")}, "bad=count.*bad=count"),
        change("condition more", {"n": N}, {"n": BAD}, "aggregate 'n' is n=count"),
        change("other function", {"t": TOTAL}, {"t": ("max", "num")}, "aggregate 't' is t=sum"),
        change("other column", {"t": TOTAL}, {"t": ("sum", "x")}, "aggregate 't' is t=sum"),
        change("narrower sum", {"t": ("sum", "x")}, {"t": ("sum", "code")}, "aggregate 't' is t=sum"),
        change("names change places", {"a": N, "b": TOTAL}, {"b": N, "a": TOTAL}, "aggregate 'a' is a=count"),
        change("renamed without leave", {"n": N}, {"rows": N}, "--allow-dropped-state"),
        *_renamed_aggregates(),
        change(
            "one more shares values",
            {"u": USERS},
            {"u": USERS, "v": USERS},
            "share their state: that of count_distinct over 'word' is of u in",
        ),
    ]


def _renamed_aggregates() -> list[Change]:
    def change(name: str, after: Mapping[str, Any], were: Mapping[str, str], *more: Any) -> Change:
        before = {"aggregates": {"n": N, "bad": BAD, "u": USERS}}
        return Change(name, before, {"aggregates": after, "aggregates_from": were}, *more)

    others = {"bad": BAD, "u": USERS}
    return [
        change("renamed", {"rows": N, **others}, {"rows": "n"}),
        change(
            "two change names", {"bad": N, "n": BAD, "u": USERS}, {"bad": "n", "n": "bad"}, "among themselves"
        ),
        change("one takes the name of another", {"bad": N, "b": BAD, "u": USERS}, {"bad": "n", "b": "bad"}),
        change("all renamed", {"c": USERS, "a": N, "b": BAD}, {"a": "n", "b": "bad", "c": "u"}),
        change("renamed and added", {"t": TOTAL, "m": MEAN, "rows": N, **others}, {"rows": "n", "t": "m"}),
        change("renamed and removed", {"rows": N, "u": USERS}, {"rows": "n"}, "", True),
        change(
            "renamed and another form", {"rows": TOTAL, **others}, {"rows": "n"}, "aggregate 'rows' is rows=c"
        ),
        change(
            "both renamed from one", {"a": N, "b": N, **others}, {"a": "n", "b": "n"}, "both renamed_from 'n'"
        ),
        change("renamed from what is there", {"n": N, "m": N, **others}, {"m": "n"}),
    ]


_WINDOWS = {
    "tumbling": weir.tumbling("50ms"),
    "sliding": weir.sliding("60ms", "20ms"),
    "cumulative": weir.cumulative("100ms", "20ms"),
    "session": weir.session("5ms"),
}
_ADDED = ({"n": N, "bad": BAD}, {"t": TOTAL, "bad": BAD, "u": USERS, "n": N})
_ORDER = ({"n": N, "t": TOTAL, "m": MEAN}, {"m": MEAN, "t": TOTAL, "n": N})


def _windows() -> list[Change]:
    found = [
        Change(
            f"{what}, {kind} windows",
            {"window": window, "aggregates": before},
            {"window": window, "aggregates": after, "parallelism": 2},
        )
        for what, (before, after) in (("added", _ADDED), ("order", _ORDER))
        for kind, window in _WINDOWS.items()
    ]
    late: Settings = {"window": _WINDOWS["tumbling"], "more": {"allowed_lateness": "20ms"}}
    return [
        *found,
        Change("longer", {}, {"window": weir.tumbling("60ms")}, "window"),
        Change("another kind", {}, {"window": weir.session("50ms")}, "window"),
        Change("other offset", {}, {"window": weir.tumbling("50ms", offset="10ms")}, "window"),
        Change("other gap", {"window": _WINDOWS["session"]}, {"window": weir.session("8ms")}, "window"),
        Change(
            "other step",
            {"window": _WINDOWS["sliding"]},
            {"window": weir.sliding("60ms", "30ms")},
            "window",
        ),
        Change(
            "removed with lateness",
            {**late, "aggregates": _ADDED[1]},
            {**late, "aggregates": {"n": N}},
            "",
            True,
        ),
        Change("lateness", {"window": late["window"]}, late, "windows take late rows not at all"),
        Change("longer lateness", late, {**late, "more": {"allowed_lateness": "40ms"}}, "late rows for 20ms"),
        Change("shorter lateness", late, {**late, "more": {"allowed_lateness": "10ms"}}),
        Change("added with lateness", {**late, "aggregates": _ADDED[0]}, {**late, "aggregates": _ADDED[1]}),
        *_with_own_cells(),
    ]


def _with_own_cells() -> list[Change]:
    """Of windows that have cells besides those of their aggregates."""
    session, tumbling = _WINDOWS["session"], _WINDOWS["tumbling"]
    late: Settings = {"allowed_lateness": "10ms"}
    early: Settings = {"early": weir.every("10ms", time="event")}
    changes: Settings = {**early, "results": "changelog"}
    discards: Settings = {**early, "results": "discarding"}
    kinds: Mapping[str, Settings] = {
        "sessions": {"window": session, "more": {}},
        "late sessions": {"window": session, "more": late},
        "early sessions": {"window": session, "more": early},
        "changes of sessions": {"window": session, "more": {**changes, **late}},
        "discarding sessions": {"window": session, "more": discards},
        "early windows": {"window": tumbling, "more": early},
        "changes of windows": {"window": tumbling, "more": changes},
        "discarding windows": {"window": tumbling, "more": discards},
        "global windows": {"window": weir.global_window(), "more": changes},
    }
    before, after = {"n": N, "bad": BAD}, {"t": TOTAL, "bad": BAD, "m": MEAN, "n": N}
    fewer = {"m": MEAN, "bad": BAD}
    # Only what adds up its values can be told as changes.
    parts = {"about": ("approx_distinct", "num"), "n": N, "u": USERS, "bad": BAD}
    with_parts = [
        Change(
            f"first parts {what}, {kind}",
            {**kinds[kind], "aggregates": old},
            {**kinds[kind], "aggregates": new},
            drops=True,
        )
        for kind in ("sessions", "late sessions", "early sessions", "early windows")
        for what, old, new in (("added", before, parts), ("removed", parts, before))
    ]
    return with_parts + [
        change
        for kind, settings in kinds.items()
        for change in (
            Change(f"added, {kind}", {**settings, "aggregates": before}, {**settings, "aggregates": after}),
            Change(
                f"removed and added, {kind}",
                {**settings, "aggregates": before},
                {**settings, "aggregates": fewer},
                drops=True,
            ),
        )
    ]


def _joins() -> list[Change]:
    left = {"how": "left"}
    return [
        Change("left join", left, left),
        Change("left join, renamed", left, {**left, "step": "now", "renamed_from": "step"}),
        Change("left join, more subtasks", left, {**left, "parallelism": 3}),
        Change("left join, condition in its stage", left, {**left, "within_stage": "bad"}),
        Change("left join, condition in its stage dropped", {**left, "within_stage": "bad"}, left),
        Change("left join, branch before it", left, {**left, "ahead": True}),
        Change("left join, branch before it dropped", {**left, "ahead": True}, left),
        Change("left join, condition before it", left, {**left, "where": "bad"}),
        Change("sides change places", {}, {"swapped": True}, "changed places"),
        Change("inner to left", {}, left, "rows that are kept for a time"),
        Change("left to inner", left, {}, "how"),
        Change("longer", {}, {"within": ("-30ms", "30ms")}, "bounds"),
        Change("shorter", {}, {"within": ("-10ms", "10ms")}, "bounds"),
    ]


def _tops() -> list[Change]:
    return [
        Change("more rows", {}, {"rows": 3}, "order"),
        Change("fewer rows", {}, {"rows": 1}, "order"),
        Change("by another column", {}, {"by": "code"}, "order"),
        Change("the other way round", {}, {"ascending": True}, "order"),
        Change("with places", {}, {"rank": "place"}, ""),
        Change("without places", {"rank": "place"}, {}, ""),
        Change("places renamed", {"rank": "place"}, {"rank": "nth"}, ""),
        Change("ascending, more subtasks", {"ascending": True}, {"ascending": True, "parallelism": 2}),
    ]


def _deduplications() -> list[Change]:
    short, long = {"within": "15ms"}, {"within": "30ms"}
    return [
        Change("longer", short, long),
        Change("shorter", long, short),
        Change("for a time", {}, short),
        Change("for ever", short, {}),
        Change("within, renamed", short, {**short, "step": "now", "renamed_from": "step"}),
        Change("within, more subtasks", short, {**short, "parallelism": 3}),
        Change("within, condition", short, {**short, "where": "abc"}),
    ]


_LAG, _TOTAL = ("lag", "num", "rows", 2), ("sum", "code", "range", None)
_THREE, _RECENT = ("sum", "num", "rows", 2), ("max", "x", "range", 20)


def _overs() -> list[Change]:
    def change(name: str, before: Mapping[str, Any], after: Mapping[str, Any], *more: Any) -> Change:
        return Change(name, {"over": before}, {"over": after}, *more)

    all_ = {"a": _LAG, "b": _TOTAL, "c": _THREE, "d": _RECENT}
    order = {"order": (OrderColumn("num", ascending=True),)}
    return [
        change("all", all_, all_),
        change("added", {"a": _LAG}, {"a": _LAG, "b": _TOTAL}, "columns"),
        change("removed", {"a": _LAG, "b": _TOTAL}, {"b": _TOTAL}, "columns"),
        change("order", {"a": _LAG, "c": _THREE}, {"c": _THREE, "a": _LAG}, "columns"),
        change("renamed", {"a": _LAG}, {"b": _LAG}, "columns"),
        change("longer frame", {"d": _RECENT}, {"d": ("max", "x", "range", 30)}, "columns"),
        change("shorter frame", {"d": _RECENT}, {"d": ("max", "x", "range", 10)}, "columns"),
        change("more rows", {"c": _THREE}, {"c": ("sum", "num", "rows", 5)}, "columns"),
        change("other frame", {"d": _RECENT}, {"d": ("max", "x", "rows", 20)}, "columns"),
        change("rows to range", {"b": _TOTAL}, {"b": ("sum", "code", "rows", None)}, "columns"),
        change("other function", {"c": _THREE}, {"c": ("min", "num", "rows", 2)}, "columns"),
        change("other column", {"c": _THREE}, {"c": ("sum", "code", "rows", 2)}, "columns"),
        Change("more to order by", {}, order, "order"),
        Change("less to order by", order, {}, "order"),
        Change("all, more subtasks", {"over": all_}, {"over": all_, "parallelism": 3}),
        Change("all, renamed", {"over": all_}, {"over": all_, "step": "now", "renamed_from": "step"}),
    ]


def _changelogs() -> list[Change]:
    def change(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Change:
        return Change(name, {"aggregates": before}, {"aggregates": after}, "aggregates are of")

    best = {"rows": 2}
    # Rows that a condition had left out would be taken back, though they never came, or others stay for ever.
    common = [
        replace(each, refused="no condition") if each.name.startswith("condition in its stage") else each
        for each in _common("changelog")
    ]
    only = {"within_stage": "bad"}
    return [
        *common,
        Change("the same condition in its stage", only, only),
        Change("another condition in its stage", only, {"within_stage": "in"}, "whose rows meet"),
        Change(
            "condition in its stage, renamed", only, {"step": "now", "renamed_from": "step"}, "no condition"
        ),
        Change("top, condition in its stage dropped", {"rows": 2, **only}, {"rows": 2}, "no condition"),
        change("added", {"n": N}, {"n": N, "t": TOTAL}),
        change("removed", {"n": N, "t": TOTAL}, {"t": TOTAL}),
        change("order", {"n": N, "t": TOTAL}, {"t": TOTAL, "n": N}),
        change("renamed", {"n": N}, {"rows": N}),
        change("other condition", {"n": BAD}, {"n": ("count", "", "abc")}),
        change("other function", {"t": TOTAL}, {"t": ("max", "num")}),
        change("other column", {"t": TOTAL}, {"t": ("sum", "x")}),
        Change("top", best, best),
        Change("top, more subtasks", best, {**best, "parallelism": 3}),
        Change("top, renamed", best, {**best, "step": "now", "renamed_from": "step"}),
        Change("top, more rows", best, {"rows": 3}, "order"),
        Change("top, fewer rows", best, {"rows": 1}, "order"),
    ]


def _of_states(name: str, before: Mapping[str, Any], after: Mapping[str, Any], *more: Any) -> Change:
    return Change(name, {"states": before}, {"states": after}, *more)


def _number(dtype: Any = int, default: Any = 0, **more: Any) -> weir.ValueState:
    return weir.ValueState(dtype, default, **more)


def _states() -> list[Change]:
    change, number = _of_states, _number
    total, rows = number(), weir.ListState(int)
    words = weir.MapState(str, int)
    return [
        change("added", {"total": total}, {"total": total, "rows": rows, "words": words}),
        change("removed without leave", {"total": total, "rows": rows}, {"total": total}, "rows"),
        change("removed", {"total": total, "rows": rows}, {"total": total}, "", True),
        change("order", {"total": total, "rows": rows}, {"rows": rows, "total": total}),
        change("renamed", {"total": total}, {"sum_": number(renamed_from="total")}),
        change(
            "two change names",
            {"a": total, "b": number(default=7)},
            {"b": number(renamed_from="a"), "a": number(default=7, renamed_from="b")},
            "among themselves",
        ),
        change(
            "one takes the name of another",
            {"a": total, "b": number(default=7)},
            {"b": number(renamed_from="a"), "c": number(default=7, renamed_from="b")},
        ),
        change("renamed without a word", {"total": total}, {"sum_": total}, "total"),
        change("map renamed", {"words": words}, {"texts": weir.MapState(str, int, renamed_from="words")}),
        change("list renamed", {"rows": rows}, {"list_": weir.ListState(int, renamed_from="rows")}),
        *(
            change(
                f"{made.kind} renamed",
                {"kept": made(int, retention="1h")},
                {"held": made(int, retention="1h", renamed_from="kept")},
            )
            for made in (weir.VersionedState, weir.WindowState, weir.SessionState)
        ),
        change("widened", {"total": number(pl.Int32)}, {"total": total}, ""),
        change("narrowed", {"total": total}, {"total": number(pl.Int32)}, "int64"),
        change("other type", {"total": total}, {"total": number(float, 0.0)}, "int64"),
        change("other kind", {"total": rows}, {"total": words}, "total"),
        change("other default", {"total": total}, {"total": number(default=5)}),
        change("field added", {"t": number(Small, Small(0))}, {"t": number(Wide, Wide(0))}),
        change(
            "field that is never null", {"t": number(Small, Small(0))}, {"t": number(Must, Must(0))}, "note"
        ),
        change("field removed", {"t": number(Wide, Wide(0))}, {"t": number(Small, Small(0))}, "note"),
    ]


def _lifetimes() -> list[Change]:
    change, number = _of_states, _number
    total = number()
    short, long = weir.Ttl("15ms"), weir.Ttl("30ms")
    return [
        change("with a TTL", {"total": total}, {"total": number(ttl=weir.Ttl("1h"))}),
        change("without a TTL", {"total": number(ttl=short)}, {"total": total}, ""),
        change("longer TTL", {"total": number(ttl=short)}, {"total": number(ttl=long)}, ""),
        change("shorter TTL", {"total": number(ttl=long)}, {"total": number(ttl=short)}, ""),
        *(
            change(f"{what} TTL of {name}", {"kept": make(short)}, {"kept": make(ttl)})
            for what, ttl in (("no", None), ("longer", long))
            for name, make in (
                ("texts", lambda ttl: weir.ValueState(str, "", ttl=ttl)),
                ("lists", lambda ttl: weir.ListState(int, ttl=ttl)),
                ("maps", lambda ttl: weir.MapState(str, int, ttl=ttl)),
            )
        ),
        change(
            "no TTL, renamed",
            {"total": number(ttl=short)},
            {"sum_": number(renamed_from="total")},
        ),
        *(
            change(
                f"longer retention of a {made.kind}",
                {"kept": made(int, retention="15ms")},
                {"kept": made(int, retention="1h")},
            )
            for made in (weir.WindowState, weir.SessionState)
        ),
        change(
            "time of TTL",
            {"t": number(ttl=short)},
            {"t": number(ttl=weir.Ttl("15ms", time="processing"))},
            "time",
        ),
    ]


CHANGES: Mapping[str, list[Change]] = {
    "running": [*_common("running"), *_aggregates()],
    "window": [*_common("window"), *_aggregates(), *_windows()],
    "join": [*_common("join"), *_joins()],
    "top": [*_common("top"), *_tops()],
    "deduplicate": [*_common("deduplicate"), *_deduplications()],
    "changelog": _changelogs(),
    "over": [*_common("over"), *_overs()],
    "process": [*_common("process"), *_states(), *_lifetimes()],
}
