"""Jobs whose aggregates changed and that keep their state: right against a computation from scratch, or refused."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

import weir
from tests.weir.states.changed_jobs import rows_of, running, value, windowed
from weir import testing
from weir.errors import WeirError
from weir.keys import KeyColumn
from weir.operators.keyed.aggregate_functions import cell_count
from weir.operators.windows.folds import Folds
from weir.specs import Aggregate
from weir.specs.aggregate_functions import stored_cells
from weir.specs.windows import WindowAggregate
from weir.state.tables.pane_packing import pack_pane, unpack_panes

N, BAD, TOTAL = ("count",), ("count", "", "bad"), ("sum", "num")
MEAN, LAST, USERS = ("mean", "x"), ("last", "num"), ("count_distinct", "word")
ABOUT = ("count_distinct", "num")


@dataclass
class Change:
    """The aggregates before and after, and what comes of it."""

    name: str
    before: dict
    after: dict
    #: A part of the message that refuses it; empty: it goes on.
    refused: str = ""
    #: Permission that it needs.
    drops: bool = False
    #: Windows: only of these kinds; sessions cannot take more.
    adds: bool = False


CHANGES = [
    Change("the same", {"n": N, "bad": BAD, "total": TOTAL}, {"n": N, "bad": BAD, "total": TOTAL}),
    Change("another order of equal functions", {"n": N, "bad": BAD}, {"bad": BAD, "n": N}),
    Change("another order of all", {"n": N, "m": MEAN, "total": TOTAL}, {"total": TOTAL, "n": N, "m": MEAN}),
    Change("one added at the end", {"n": N}, {"n": N, "total": TOTAL}, adds=True),
    Change(
        "one added at the beginning", {"n": N, "bad": BAD}, {"total": TOTAL, "n": N, "bad": BAD}, adds=True
    ),
    Change("nine added", {"n": N}, {"n": N, **{f"n{i}": TOTAL for i in range(9)}}, adds=True),
    Change("one with two cells added", {"total": TOTAL}, {"m": MEAN, "total": TOTAL}, adds=True),
    Change("one with a part added", {"n": N}, {"users": USERS, "n": N}, adds=True),
    Change("one removed without leave", {"n": N, "bad": BAD}, {"bad": BAD}, "n=count.*--allow-dropped-state"),
    Change("one removed", {"n": N, "bad": BAD}, {"bad": BAD}, drops=True),
    Change("the last one removed", {"n": N, "m": MEAN}, {"n": N}, drops=True),
    Change(
        "one removed, one added",
        {"n": N, "m": MEAN, "bad": BAD},
        {"t": TOTAL, "bad": BAD, "n": N},
        drops=True,
        adds=True,
    ),
    Change("parts change places", {"users": USERS, "about": ABOUT}, {"about": ABOUT, "users": USERS}),
    Change("one with a part removed", {"users": USERS, "about": ABOUT}, {"about": ABOUT}, drops=True),
    Change(
        "another condition",
        {"n": N, "bad": BAD},
        {"n": N, "bad": ("count", "", "abc")},
        "bad=count.*bad=count",
    ),
    Change("a condition more", {"n": N}, {"n": BAD}, "aggregate 'n' is n=count"),
    Change("another function", {"total": TOTAL}, {"total": ("max", "num")}, "aggregate 'total' is total=sum"),
    Change("another column", {"total": TOTAL}, {"total": ("sum", "x")}, "aggregate 'total' is total=sum"),
    Change(
        "a narrower sum",
        {"total": ("sum", "x")},
        {"total": ("sum", "code")},
        "aggregate 'total' is total=sum",
    ),
    Change("names change places", {"a": N, "b": TOTAL}, {"b": N, "a": TOTAL}, "aggregate 'a' is a=count"),
    Change("one renamed without leave", {"n": N}, {"rows": N}, "--allow-dropped-state"),
    Change(
        "one more of the same values",
        {"users": USERS},
        {"users": USERS, "more": USERS},
        "share their state",
        adds=True,
    ),
]
IDS = [change.name for change in CHANGES]


def expected(change, before, after):
    """The values of one key: those that were kept over all rows, new ones over those after the change."""
    kept = {name for name, each in change.before.items() if change.after.get(name) == each}
    return {
        name: value(before + after if name in kept else after, *each) for name, each in change.after.items()
    }


def refused(change, flow, path):
    with pytest.raises(WeirError, match=change.refused):
        testing.start(flow, {"events": []}, from_savepoint=path)


@pytest.mark.parametrize("change", CHANGES, ids=IDS)
@pytest.mark.parametrize(("state", "then"), [("memory", 1), ("rocksdb", 3)])
def test_running_aggregates(change, state, then, tmp_path):
    before, after = rows_of(1, 60), rows_of(2, 60, first_ms=100, keys=8)
    with testing.start(running(change.before), {"events": before}, state=state) as job:
        path = job.savepoint(tmp_path / "savepoint")
    if change.refused:
        refused(change, running(change.after), path)
        return
    flow = running(change.after, parallelism=then)
    with testing.start(
        flow, {"events": after[:20]}, from_savepoint=path, allow_dropped_state=change.drops, state=state
    ) as job:
        job.checkpoint()
        job.push("events", after[20:40])
        # What no checkpoint has comes again.
        job.restart()
        job.push("events", after[40:])
        job.checkpoint()
        again = job.savepoint(tmp_path / "again")
        rows = list(job.rows("out"))
    columns = ["k", "at", "num", "x", "code", "word"]
    assert list(rows[0]) == [*columns, *change.after]
    last = {row["k"]: row for row in rows}
    for key, row in last.items():
        of_key = [[each for each in part if each["k"] == key] for part in (before, after)]
        assert {name: row[name] for name in change.after} == expected(change, *of_key), key
    # The order of the state goes on, whatever the order of the job.
    turned = dict(reversed(change.after.items()))
    with testing.start(running(turned), {"events": after[:1]}, from_savepoint=again, state=state) as job:
        (row,) = job.rows("out")
        key = row["k"]
        of_key = [[each for each in part if each["k"] == key] for part in (before, [*after, after[0]])]
        assert {name: row[name] for name in change.after} == expected(change, *of_key)


WINDOWS = {
    "tumbling": weir.tumbling("50ms"),
    "sliding": weir.sliding("60ms", "20ms"),
    "cumulative": weir.cumulative("100ms", "20ms"),
    "session": weir.session("30ms"),
}


def windows_of(kind, rows):
    """Windows and their rows, of the rows of one key in order of time."""
    if kind == "session":
        found = []
        for row in rows:
            if found and row["at"] - found[-1][-1]["at"] <= 30:
                found[-1].append(row)
            else:
                found.append([row])
        return {(part[0]["at"], part[-1]["at"] + 30): part for part in found}
    found = {}
    size, step = {"tumbling": (50, 50), "sliding": (60, 20), "cumulative": (100, 20)}[kind]
    for row in rows:
        if kind == "cumulative":
            start = row["at"] - row["at"] % size
            ends = [start + step * number for number in range(1, size // step + 1)]
            bounds = [(start, end) for end in ends if end > row["at"]]
        else:
            last = row["at"] - row["at"] % step
            bounds = [
                (start, start + size) for start in range(last, last - size, -step) if start + size > row["at"]
            ]
        for each in bounds:
            found.setdefault(each, []).append(row)
    return found


@pytest.mark.parametrize(("kind", "keyed"), [*((kind, True) for kind in WINDOWS), ("tumbling", False)])
@pytest.mark.parametrize("change", CHANGES, ids=IDS)
def test_windows(change, kind, keyed, tmp_path):
    has_parts = {"users", "about"} & {*change.before, *change.after}
    change_key = "k" if keyed or has_parts else None
    rows = rows_of(3, 240, keys=4)
    cut = 133
    before, after = rows[:cut], rows[cut:]
    window = WINDOWS[kind]
    with testing.start(windowed(change.before, window, key=change_key), {"events": before}) as job:
        job.advance_watermark("events", cut - 5)
        told_before = len(job.rows("out"))
        path = job.savepoint(tmp_path / "savepoint")
    flow = windowed(change.after, window, key=change_key, parallelism=2)
    cannot_add = kind == "session" and change.adds
    if change.refused or cannot_add:
        with pytest.raises(
            WeirError, match=change.refused if not cannot_add else "cannot take more into the state"
        ):
            testing.start(flow, {"events": []}, from_savepoint=path, allow_dropped_state=change.drops)
        return
    with testing.start(flow, {"events": []}, from_savepoint=path, allow_dropped_state=change.drops) as job:
        job.advance_watermark("events", cut - 5)
        job.push("events", after[:50])
        job.checkpoint()
        job.advance_watermark("events", cut + 20)
        job.restart()
        job.push("events", after[50:])
        result = job.finish()
    assert told_before or kind == "session"
    wanted = {}
    for key in {row["k"] for row in rows} if change_key else {None}:
        of_key = [row for row in rows if key is None or row["k"] == key]
        for (start, end), taken in windows_of(kind, of_key).items():
            if end > cut - 5 or (kind == "session" and end >= cut - 5):
                old = [row for row in taken if row["at"] < cut]
                new = [row for row in taken if row["at"] >= cut]
                wanted[key, start, end] = expected(change, old, new)
    found = {
        (row.get("k"), row["window_start"], row["window_end"]): {name: row[name] for name in change.after}
        for row in result["out"]
    }
    assert found == wanted


@pytest.mark.parametrize("more", [0, 1, 9])
def test_panes_that_were_packed_before_aggregates_were_added(more):
    chosen = np.random.default_rng(4)
    groups = np.repeat(np.array([1, 5], dtype=np.uint16), 7)
    keys = KeyColumn(chosen.integers(0, 256, 14 * 8).astype(np.uint8), np.arange(0, 14 * 8 + 1, 8))
    cells, presence = chosen.integers(-9, 9, (14, 3)), np.full((14, 1), 5, dtype=np.uint8)
    pane = pack_pane(1000, keys, groups, cells, presence)
    found = unpack_panes([pane], 3 + more)
    assert found.cells.shape[1] == 3 + more
    assert not found.cells[:, 3:].any()
    assert (found.presence[:, 0] == 5).all()
    assert not found.presence[:, 1:].any()
    plain = unpack_panes([pane], 3)
    assert (found.cells[:, :3] == plain.cells).all()
    assert found.keys.data.tobytes() == plain.keys.data.tobytes()
    assert found.groups.tolist() == plain.groups.tolist()


def test_cells_of_every_function_are_as_many_as_the_state_has():
    """The layout of a step, which decides about changes, and the operators agree."""
    schema = pa.schema({"n": pa.int64(), "x": pa.float64(), "d": pa.decimal128(9, 2)})
    asked = [
        (name, "n", ()) for name in ("count", "sum", "min", "max", "mean", "first", "last", "count_distinct")
    ]
    asked += [(name, "d", ()) for name in ("sum", "min", "max", "mean", "count")]
    asked += [
        ("variance", "x", (1,)),
        ("stddev", "n", (0,)),
        ("largest", "n", (4,)),
        ("approx_distinct", "n", (0.02,)),
    ]
    asked += [("dropped", None, (3,)), ("count", None, ())]
    for function, column, parameters in asked:
        running = Aggregate("a", function, column, None, parameters)
        assert stored_cells(schema, running) == cell_count((running,), schema), (function, column)
        window = WindowAggregate("a", function, column, None, parameters)
        assert stored_cells(schema, window) == Folds((window,), schema).cell_count, (function, column)
    quantile = WindowAggregate("a", "quantile", "x", None, (0.5, 0.01))
    assert stored_cells(schema, quantile) == Folds((quantile,), schema).cell_count
