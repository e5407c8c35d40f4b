"""What a job tells after a change, from scratch: all rows are looked at again, in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.changed.jobs import LAST_OF, SOURCES, Settings
from benchmarks.changed.processes import Held
from benchmarks.changed.rows import CONDITIONS, SCHEMA, Row, value

#: What was told, each row as often as it was; of changelogs what they lead to.
Told = Counter[tuple[tuple[str, Any], ...]]
Rows = dict[str, list[Row]]


@dataclass(frozen=True)
class Run:
    """A job before and after its change, and the rows that come to it."""

    old: Settings
    new: Settings
    #: By source, as ``SOURCES``.
    before: Rows
    after: Rows
    #: The watermark at which the savepoint was made.
    cut_ms: int
    #: Rows from this time on came after the change.
    changed_ms: int

    def is_old(self, row: Row) -> bool:
        """Whether a row came before the change."""
        return bool(row["at"] < self.changed_ms)

    def taken(self, source: str = SOURCES[0]) -> tuple[list[Row], list[Row]]:
        """Rows that pass the conditions before the step, before and after the change."""
        found = (
            [
                row
                for row in rows[source]
                if all(CONDITIONS[settings[name]][1](row) for name in ("where", "within_stage"))
            ]
            for rows, settings in ((self.before, self.old), (self.after, self.new))
        )
        before, after = found
        return before, after

    def by_key(self, source: str = SOURCES[0]) -> dict[tuple[Any, ...], tuple[list[Row], list[Row]]]:
        """The rows of each key, before and after."""
        found: dict[tuple[Any, ...], tuple[list[Row], list[Row]]] = {}
        for place, rows in enumerate(self.taken(source)):
            for row in rows:
                key = tuple(row[name] for name in self.new["key"])
                found.setdefault(key, ([], []))[place].append(row)
        return found

    def columns(self) -> list[str]:
        """Of a row as it comes to the step now."""
        return [name for name in self.new["columns"]]


def told_from_scratch(kind: str, run: Run) -> Told:
    """What the job tells after the change."""
    return counted(run.new, [row for row in _TOLD[kind](run) if CONDITIONS[run.new["after"]][1](row)])


def counted(settings: Settings, rows: Sequence[Mapping[str, Any]]) -> Told:
    """Rows in no order, with the names of the job."""
    names = settings["names"]
    return Counter(tuple(sorted((names.get(name, name), each) for name, each in row.items())) for row in rows)


def _shown(run: Run, row: Row) -> Row:
    return {name: row.get(name) for name in run.columns()}


def _aggregated(run: Run, old: Sequence[Row], new: Sequence[Row]) -> Row:
    """Aggregates that there were are over all rows, others over those after the change."""
    before = run.old["aggregates"]
    names: Mapping[str, str] = run.new["aggregates_from"]
    were = {now: then for now, then in names.items() if now not in before or now in names.values()}
    kept = {name: name for name in before if name not in were.values()} | were

    def goes_on(name: str, each: Any) -> bool:
        return name in kept and bool(before.get(kept[name]) == each)

    return {
        name: value([*old, *new] if goes_on(name, each) else new, *each)
        for name, each in run.new["aggregates"].items()
    }


def _running(run: Run) -> list[Row]:
    told = []
    for old, new in run.by_key().values():
        for number, row in enumerate(new):
            told.append({**_shown(run, row), **_aggregated(run, old, new[: number + 1])})
    return told


def windows_of(window: Any, rows: Sequence[Row]) -> dict[tuple[int, int], list[Row]]:
    """The rows of one key, by the windows that they are in."""
    found: dict[tuple[int, int], list[Row]] = {}
    if window.kind == "session":
        held: list[Row] = []
        for row in sorted(rows, key=lambda row: row["at"]):
            if held and row["at"] > held[-1]["at"] + window.size_ms:
                found[held[0]["at"], held[-1]["at"] + window.size_ms] = held
                held = []
            held.append(row)
        if held:
            found[held[0]["at"], held[-1]["at"] + window.size_ms] = held
        return found
    if window.kind == "global":
        # From the first row to the last one.
        return {(rows[0]["at"], rows[-1]["at"] + 1): list(rows)} if rows else {}
    for row in rows:
        at, size, step = row["at"], window.size_ms, window.step_ms
        if window.kind == "cumulative":
            start = at - (at - window.offset_ms) % size
            bounds = [(start, start + part) for part in range(step, size + 1, step) if at < start + part]
        else:
            first = at - (at - window.offset_ms) % step
            bounds = [
                (start, start + size) for start in range(first, first - size, -step) if start + size > at
            ]
        for each in bounds:
            found.setdefault(each, []).append(row)
    return found


def _windowed(run: Run) -> list[Row]:
    told, window = [], run.new["window"]
    results = run.new["more"].get("results", "accumulating")
    tells_early = "early" in run.new["more"]
    for key, (old, new) in run.by_key().items():
        shown = dict(zip(run.new["key"], key, strict=True))
        for (start, end), rows in windows_of(window, [*old, *new]).items():
            # A session takes rows at its very end.
            if end < run.cut_ms or (end == run.cut_ms and window.kind != "session"):
                continue
            olds = [row for row in rows if run.is_old(row)]
            news = [row for row in rows if not run.is_old(row)]
            if tells_early and not news and results != "accumulating":
                # All of it was told before the change.
                continue
            whole = {**shown, "window_start": start, "window_end": end}
            if results == "changelog":
                told += _changes(run, shown, olds)
                kind = "update_after" if olds else "insert"
                told.append({**whole, **_aggregated(run, olds, news), "_change": kind})
            else:
                told.append({**whole, **_aggregated(run, [] if results == "discarding" else olds, news)})
    return told


def _changes(run: Run, key: Row, old: Sequence[Row]) -> list[Row]:
    """What was told of parts of a window, as it goes."""
    parts = sorted(windows_of(run.new["window"], old).items())
    return [
        {
            **key,
            "window_start": start,
            "window_end": end,
            **_aggregated(run, rows, []),
            "_change": "update_before" if number == len(parts) - 1 else "delete",
        }
        for number, ((start, end), rows) in enumerate(parts)
    ]


def _milliseconds(within: tuple[str, str]) -> tuple[int, int]:
    low, high = (int(each.removesuffix("ms")) for each in within)
    return low, high


def _joined(run: Run) -> list[Row]:
    told: list[Row] = []
    low, high = _milliseconds(run.new["within"])
    key, how = run.new["key"], run.new["how"]
    own = [name for name in run.columns() if name not in key]
    sources = SOURCES[::-1] if run.new["swapped"] else SOURCES
    (lefts, new_lefts), (rights, new_rights) = (run.taken(source) for source in sources)
    for left in [*lefts, *new_lefts]:
        has_partner = False
        for right in [*rights, *new_rights]:
            fits = all(left[name] == right[name] for name in key)
            if not (fits and low <= right["at"] - left["at"] <= high):
                continue
            has_partner = True
            if not (run.is_old(left) and run.is_old(right)):
                told.append(_pair(left, right, key, own))
        is_over = run.is_old(left) and left["at"] + high < run.cut_ms
        if how == "left" and not has_partner and not is_over:
            told.append(_pair(left, dict.fromkeys(SCHEMA), key, own))
    return told


def _pair(left: Row, right: Row, key: Sequence[str], own: Sequence[str]) -> Row:
    return {
        **{name: left[name] for name in key},
        **{name: left.get(name) for name in own},
        **{f"{name}_right": right.get(name) for name in own},
    }


def _best(settings: Settings, rows: Sequence[Row]) -> list[Row]:
    by, sign = settings["by"], 1 if settings["ascending"] else -1
    ordered = sorted(rows, key=lambda row: (row[by] is None, sign * (row[by] or 0)))[: settings["rows"]]
    if settings["rank"] is None:
        return ordered
    return [{**row, settings["rank"]: place} for place, row in enumerate(ordered, 1)]


def _top(run: Run) -> list[Row]:
    """The rows that are there at the end; what was there at the savepoint is put before what is told."""
    return [
        {**_shown(run, row), **{name: row[name] for name in row if name == run.new["rank"]}}
        for old, new in run.by_key().values()
        for row in _best(run.new, [*old, *new])
    ]


def top_before(run: Run) -> list[Row]:
    """What the changelog of a top step had led to at the savepoint, with the columns that it has now."""
    return [
        {**_shown(run, row), **{name: row[name] for name in row if name == run.new["rank"]}}
        for old, _ in run.by_key().values()
        for row in _best({**run.old, "rank": run.new["rank"]}, old)
    ]


def _deduplicated(run: Run) -> list[Row]:
    told, within = [], None
    for old, new in run.by_key().values():
        last_ms: int | None = None
        for rows, settings in ((old, run.old), (new, run.new)):
            if (
                rows is new
                and last_ms is not None
                and within
                and last_ms + int(within.removesuffix("ms")) <= run.cut_ms
            ):
                # It was forgotten before the change.
                last_ms = None
            within = settings["within"]
            for row in rows:
                if last_ms is None or (within and row["at"] >= last_ms + int(within.removesuffix("ms"))):
                    last_ms = row["at"]
                    if rows is new:
                        told.append(_shown(run, row))
    return told


def _processed(run: Run) -> list[Row]:
    told = []
    old_states, new_states = run.old["states"], run.new["states"]
    for key, (old, new) in run.by_key().items():
        held: dict[str, Held] = {name: Held() for name in old_states}
        for row in old:
            for name, state in old_states.items():
                held[name].take(state, row)
        for name, state in old_states.items():
            held[name].forget(state, run.cut_ms)
        held = {name: held.get(state.renamed_from or name, Held()) for name, state in new_states.items()}
        for row in new:
            values = {name: held[name].take(state, row) for name, state in new_states.items()}
            told.append({**dict(zip(run.new["key"], key, strict=True)), "at": row["at"], **values})
    return told


def _changelog(run: Run) -> list[Row]:
    """The table at the end; what was there at the savepoint is put before what is told."""
    old, new = run.taken()
    return _of_last_rows(run, [*old, *new])


def _of_last_rows(run: Run, rows: Sequence[Row]) -> list[Row]:
    last = {tuple(row[name] for name in LAST_OF): row for row in rows}
    by_key: dict[tuple[Any, ...], list[Row]] = {}
    for row in last.values():
        by_key.setdefault(tuple(row[name] for name in run.new["key"]), []).append(row)
    if run.new["rows"] is not None:
        return [
            _shown(run, row)
            for found in by_key.values()
            for row in sorted(found, key=lambda row: -row["at"])[: run.new["rows"]]
        ]
    return [
        {
            **dict(zip(run.new["key"], key, strict=True)),
            **{name: value(found, *each) for name, each in run.new["aggregates"].items()},
        }
        for key, found in by_key.items()
    ]


def table_before(kind: str, run: Run) -> list[Row] | None:
    """What the changelog of a step had led to at the savepoint; None: its result is none."""
    if kind == "changelog":
        return _of_last_rows(run, run.taken()[0])
    return top_before(run) if kind == "top" else None


def _over(run: Run) -> list[Row]:
    """Rows before the savepoint that wait for the watermark are told after it, too. No two have one time."""
    told = []
    for old, new in run.by_key().values():
        rows = [*old, *new]
        told += [
            {
                **_shown(run, row),
                **{name: _before(rows[: at + 1], *each) for name, each in run.new["over"].items()},
            }
            for at, row in enumerate(rows)
            if row["at"] >= run.cut_ms
        ]
    return told


def _before(rows: Sequence[Row], function: str, column: str | None, frame: str, preceding: int | None) -> Any:
    """A value over the rows up to the last one."""
    if function == "lag":
        return rows[-1 - (preceding or 0)][str(column)] if len(rows) > (preceding or 0) else None
    if preceding is not None and frame == "rows":
        rows = rows[-1 - preceding :]
    elif preceding is not None:
        rows = [row for row in rows if row["at"] >= rows[-1]["at"] - preceding]
    return value(rows, function, column or "")


_TOLD: Mapping[str, Callable[[Run], list[Row]]] = {
    "running": _running,
    "window": _windowed,
    "join": _joined,
    "top": _top,
    "deduplicate": _deduplicated,
    "process": _processed,
    "over": _over,
    "changelog": _changelog,
}
