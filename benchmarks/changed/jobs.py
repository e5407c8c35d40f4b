"""The jobs: each is made of settings, and a change is other settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import weir
from benchmarks.changed.processes import process_class
from benchmarks.changed.rows import CONDITIONS, SCHEMA, call
from weir.plan.step_names import renamed_step
from weir.specs.over import OverColumn, OverSpec

#: What a job is made of; see ``DEFAULTS``.
Settings = Mapping[str, Any]
#: By what rows of the kind "changelog" are updated.
LAST_OF = ("word", "code")
SOURCES = ("events", "others")
COMMON: Settings = {
    "job": "changed",
    "step": "step",
    "renamed_from": None,
    "key": ("k",),
    "columns": tuple(SCHEMA),
    "types": {},
    # Names of columns as they are called in the job.
    "names": {},
    # What key columns were called, and aggregates.
    "keys_from": {},
    "aggregates_from": {},
    "where": "",
    "after": "",
    "parallelism": 1,
    "groups": 16,
    "source": "events",
    "source_from": None,
    "beside": (),
    "own_stage": False,
    # A condition right before the step, in its stage.
    "within_stage": "",
    # A step before the others that reads the same source.
    "ahead": False,
}
#: By kind of step.
DEFAULTS: Mapping[str, Settings] = {
    "running": {**COMMON, "aggregates": {"n": ("count",), "total": ("sum", "num")}},
    "window": {
        **COMMON,
        "aggregates": {"n": ("count",), "total": ("sum", "num")},
        "window": weir.tumbling("50ms"),
        "more": {},
    },
    "join": {**COMMON, "within": ("-20ms", "20ms"), "how": "inner", "swapped": False},
    "top": {**COMMON, "by": "num", "rows": 2, "ascending": False, "rank": None},
    "deduplicate": {**COMMON, "within": None},
    # Over the last rows of each word and code, which are updated.
    "changelog": {
        **COMMON,
        "aggregates": {"n": ("count",), "total": ("sum", "num"), "low": ("min", "num")},
        # None: aggregates; else the rows that came last, so many.
        "rows": None,
    },
    "over": {
        **COMMON,
        "order": (),
        "over": {"before": ("lag", "num", "rows", 2), "so_far": ("sum", "num", "range", None)},
    },
    "process": {**COMMON, "states": {"total": weir.ValueState(int, 0)}},
}


def build(kind: str, settings: Settings) -> weir.Dataflow:
    """A job with one step of a kind, whose results come to the sink "out"."""
    flow = weir.Dataflow(settings["job"], max_parallelism=settings["groups"])
    if kind == "changelog":
        rows = _source(flow, settings["source"], {**settings, "names": {}})
        rows = _renamed(rows.key_by(*LAST_OF).deduplicate("latest", keep="last"), settings)
    else:
        rows = _source(flow, settings["source"], settings)
    keyed = _keyed(rows, settings)
    more = {key: settings[key] for key in ("parallelism", "renamed_from")}
    step = settings["step"]
    if "count" in settings["beside"]:
        keyed.count("beside").sink("beside_out", weir.Collect())
    made: Any
    if kind in ("running", "window"):
        on = keyed if kind == "running" else keyed.window(settings["window"], **settings["more"])
        were: Mapping[str, str] = settings["aggregates_from"]
        calls = {
            name: call(*each, renamed_from=were.get(name)) for name, each in settings["aggregates"].items()
        }
        made = on.aggregate(step, **more, **calls)
    elif kind == "join":
        other = _keyed(
            _source(flow, "others", {**settings, "source_from": None}, "_others"), settings, "_others"
        )
        left, right = (other, keyed) if settings["swapped"] else (keyed, other)
        made = left.join(step, right, within=settings["within"], how=settings["how"], **more)
    elif kind == "top":
        order = {key: settings[key] for key in ("by", "rows", "ascending", "rank")}
        made = keyed.top(step, **order, **more)
    elif kind == "changelog" and settings["rows"] is not None:
        made = keyed.top(step, by="at", rows=settings["rows"], **more)
    elif kind == "changelog":
        made = keyed.aggregate(
            step, **more, **{name: call(*each) for name, each in settings["aggregates"].items()}
        )
    elif kind == "over":
        added = tuple(OverColumn(name, *each) for name, each in settings["over"].items())
        spec = OverSpec(keyed.key_columns, added, settings["order"])
        made = keyed.keyed_step(renamed_step(step, settings["renamed_from"]), spec, settings["parallelism"])
    elif kind == "deduplicate":
        made = keyed.deduplicate(step, within=settings["within"], **more)
    else:
        states = settings["states"]
        names = [settings["names"].get(name, name) for name in settings["key"]]
        columns = {
            **{name: _schema(settings)[was] for name, was in zip(names, settings["key"], strict=True)},
            "at": int,
            **dict.fromkeys(states, str),
        }
        made = keyed.process(step, process_class(states, names), columns, **more)
    if settings["after"]:
        made = made.filter("chosen", CONDITIONS[settings["after"]][0])
    made.sink("out", weir.Collect())
    return flow


def _schema(settings: Settings) -> dict[str, Any]:
    types = {**SCHEMA, **settings["types"]}
    return {name: types.get(name, weir.Nullable(int)) for name in settings["columns"]}


def _source(flow: weir.Dataflow, name: str, settings: Settings, suffix: str = "") -> Any:
    file = weir.JsonLines("/absent", schema=_schema(settings), event_time="at")
    rows: Any = flow.source(name, file, renamed_from=settings["source_from"])
    if settings["ahead"] and not suffix:
        rows.key_by("word").filter("ahead", CONDITIONS["bad"][0]).sink("ahead_out", weir.Collect())
    if settings["where"]:
        rows = rows.filter(f"where{suffix}", CONDITIONS[settings["where"]][0])
    return _renamed(rows, settings, suffix)


def _renamed(rows: Any, settings: Settings, suffix: str = "") -> Any:
    return rows.rename(f"names{suffix}", settings["names"]) if settings["names"] else rows


def _keyed(rows: Any, settings: Settings, suffix: str = "") -> Any:
    names = settings["names"]
    more = {"renamed_from": settings["keys_from"]} if settings["keys_from"] else {}
    keyed = rows.key_by(
        *(names.get(name, name) for name in settings["key"]), own_stage=settings["own_stage"], **more
    )
    if settings["within_stage"]:
        keyed = keyed.filter(f"within_stage{suffix}", CONDITIONS[settings["within_stage"]][0])
    return keyed
