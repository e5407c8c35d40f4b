"""Jobs whose steps changed otherwise, in name, key, window, time or form: right from scratch, or refused."""

import dataclasses

import polars as pl
import pytest

import weir
from tests.weir.states.changed_jobs import events, rows_of, running, value, windowed
from weir import testing
from weir.errors import GraphError, WeirError

N = ("count",)


@dataclasses.dataclass
class Small:
    """As it was."""

    n: int


@dataclasses.dataclass
class Wide:
    """A nullable field more."""

    n: int
    note: int | None = None


@dataclasses.dataclass
class Must:
    """A field more that is never null."""

    n: int
    note: int = 0


def process_class(state, name="total"):
    """A process that counts rows of a key in a state of this name."""

    class Counting(weir.KeyedProcess):
        def process(self, key, row, context):
            handle = getattr(self, name)
            before = handle.value
            if dataclasses.is_dataclass(before):
                handle.value = dataclasses.replace(before, n=before.n + 1)
                yield {
                    "k": row["k"],
                    "word": row["word"],
                    "told": before.n + 1,
                    "note": str(getattr(before, "note", "")),
                }
            else:
                handle.value = before + 1
                yield {"k": row["k"], "word": row["word"], "told": int(before) + 1, "note": ""}

    setattr(Counting, name, state)
    state.__set_name__(Counting, name)
    return Counting


def process(made, *, step="counts", key="k", **more):
    flow = weir.Dataflow("process")
    stream = events(flow).key_by(*((key,) if isinstance(key, str) else key))
    stream.process(step, made, {"k": str, "word": str, "told": int, "note": str}, **more).sink(
        "out", weir.Collect()
    )
    return flow


def deduplicate(*, within=None, step="first", key="k", **more):
    flow = weir.Dataflow("deduplicate")
    events(flow).key_by(key).deduplicate(step, within=within, **more).sink("out", weir.Collect())
    return flow


def top(*, by="num", rows=2, step="best", key="k", **more):
    flow = weir.Dataflow("top")
    events(flow).key_by(key).top(step, by=by, rows=rows, **more).sink("out", weir.Collect())
    return flow


def join(*, within=("-20ms", "20ms"), how="inner", step="pairs", key="k", **more):
    flow = weir.Dataflow("join")
    left, right = (events(flow, name).key_by(key) for name in ("events", "others"))
    left.join(step, right, within=within, how=how, **more).sink("out", weir.Collect())
    return flow


BEFORE, AFTER = rows_of(7, 60), rows_of(8, 60, first_ms=60, keys=8)


def saved(flow, tmp_path, inputs=None):
    with testing.start(flow, inputs or {"events": BEFORE}) as job:
        return job.savepoint(tmp_path / "savepoint")


def goes_on(flow, path, inputs=None, **more):
    with testing.start(flow, inputs or {"events": AFTER}, from_savepoint=path, **more) as job:
        job.checkpoint()
        job.restart()
        return [dict(row) for row in job.rows("out")]


def counts(rows):
    return {key: sum(row["k"] == key for row in rows) for key in {row["k"] for row in rows}}


def last_of(rows, column):
    return {row["k"]: row[column] for row in rows}


def of(state, name="total", **more):
    """A process with one state."""
    return process(process_class(state, name), **more)


def windows(window, key="k"):
    return windowed({"n": N}, window, key=key)


COUNT = running({"n": N})
TUMBLING, SLIDING = windows(weir.tumbling("50ms")), windows(weir.sliding("60ms", "20ms"))
BY_EVENTS = weir.ValueState(int, 0, ttl=weir.Ttl("1h", time="event"))
BY_CLOCK = weir.ValueState(int, 0, ttl=weir.Ttl("1h", time="processing"))
REFUSED = {
    "key of running aggregates": (COUNT, running({"n": N}, key="word"), "by k"),
    "type of the key": (COUNT, running({"n": N}, key="code"), "by k: bytes"),
    "key of windows": (TUMBLING, windows(weir.tumbling("50ms"), key="word"), "keys"),
    "size of windows": (TUMBLING, windows(weir.tumbling("60ms")), "window"),
    "kind of windows": (TUMBLING, windows(weir.session("50ms")), "window"),
    "step of windows": (SLIDING, windows(weir.sliding("60ms", "30ms")), "window"),
    "name of a step": (COUNT, running({"n": N}, step="other"), "--allow-dropped-state"),
    "key of a process": (of(weir.ValueState(int, 0)), of(weir.ValueState(int, 0), key=("k", "word")), "by k"),
    "narrower state": (of(weir.ValueState(int, 0)), of(weir.ValueState(pl.Int32, 0)), "int64"),
    "other state": (of(weir.ValueState(int, 0)), of(weir.ValueState(float, 0.0)), "int64"),
    "field that is never null": (
        of(weir.ValueState(Small, Small(0))),
        of(weir.ValueState(Must, Must(0))),
        "note",
    ),
    "name of a state": (of(weir.ValueState(int, 0)), of(weir.ValueState(int, 0), "sum_"), "total"),
    "kind of time of a ttl": (of(BY_EVENTS), of(BY_CLOCK), "times of event time"),
    "key of deduplicate": (deduplicate(), deduplicate(key="word"), "by k"),
    "key of top": (top(), top(key="word"), "keys"),
    "order of top": (top(), top(by="code"), "order"),
    "rows of top": (top(), top(rows=3), "order"),
    "key of a join": (join(), join(key="word"), "keys"),
    "another kind of step": (running({"n": N}, step="first"), deduplicate(), "first .without a name."),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_before_any_row(name, tmp_path):
    before, after, told = REFUSED[name]
    inputs = {node.name: BEFORE for node in before.build().nodes if node.is_source}
    path = saved(before, tmp_path, inputs)
    kept = sorted(str(file) for file in tmp_path.rglob("*"))
    with pytest.raises(WeirError, match=told):
        testing.start(after, {name: [] for name in inputs}, from_savepoint=path)
    assert sorted(str(file) for file in tmp_path.rglob("*")) == kept
    # The job as it was still starts from it.
    testing.start(before, {name: [] for name in inputs}, from_savepoint=path).stop()


def test_a_renamed_running_aggregate_goes_on(tmp_path):
    path = saved(running({"n": N, "users": ("count_distinct", "word")}), tmp_path)
    flow = weir.Dataflow("running")
    events(flow).key_by("k").aggregate(
        "other", renamed_from="totals", users=weir.count_distinct("word"), n=weir.count()
    ).sink("out", weir.Collect())
    rows = goes_on(flow, path)
    both = [*BEFORE, *AFTER]
    assert last_of(rows, "n") == {key: n for key, n in counts(both).items() if key in last_of(rows, "n")}
    for key, users in last_of(rows, "users").items():
        assert users == value([row for row in both if row["k"] == key], "count_distinct", "word")


def test_a_renamed_source_goes_on_where_it_was(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f'{{"k": "a", "at": {n}}}\n' for n in range(30)))

    def flow(name, **more):
        made = weir.Dataflow("sources")
        rows = made.source(
            name, weir.JsonLines(str(path), schema={"k": str, "at": int}, event_time="at"), **more
        )
        rows.key_by("k").aggregate("totals", n=weir.count()).sink("out", weir.Collect())
        return made

    with testing.start(flow("a"), {}) as job:
        savepoint = job.savepoint(tmp_path / "savepoint")
        before = len(list(job.rows("out")))
    with testing.start(flow("b", renamed_from="a"), {}, from_savepoint=savepoint) as job:
        result = job.finish()
    assert before
    assert [row["n"] for row in result["out"]] == list(range(before + 1, 31))


@pytest.mark.parametrize(
    ("make", "kept"),
    [
        (lambda **more: deduplicate(**more), "first"),
        (lambda **more: top(**more), "best"),
        (lambda **more: process(process_class(weir.ValueState(int, 0)), **more), "counts"),
        (lambda **more: join(**more), "pairs"),
    ],
    ids=["deduplicate", "top", "process", "join"],
)
@pytest.mark.parametrize("change", ["parallelism", "renamed"])
def test_a_step_goes_on_as_if_nothing_had_been(make, kept, change, tmp_path):
    inputs = {"events": BEFORE, **({"others": BEFORE} if kept == "pairs" else {})}
    later = dict.fromkeys(inputs, AFTER)
    path = saved(make(), tmp_path, inputs)
    wanted = goes_on(make(), path, later)
    more = {"parallelism": 3} if change == "parallelism" else {"step": "renamed", "renamed_from": kept}
    found = goes_on(make(**more), path, later)
    assert sorted(map(str, found)) == sorted(map(str, wanted))
    assert wanted


def test_two_steps_cannot_be_renamed_from_one(tmp_path):
    path = saved(running({"n": N}), tmp_path)
    flow = weir.Dataflow("running")
    keyed = events(flow).key_by("k")
    for name in ("a", "b"):
        keyed.aggregate(name, renamed_from="totals", n=weir.count()).sink(f"out_{name}", weir.Collect())
    with pytest.raises(WeirError, match="both renamed_from 'totals'"):
        testing.start(flow, {"events": []}, from_savepoint=path)
    keyed = events(weir.Dataflow("bad")).key_by("k")
    with pytest.raises(GraphError, match="renamed_from"):
        keyed.aggregate("x", renamed_from="a/b", n=weir.count())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (weir.ValueState(int, 0), weir.ValueState(int, 0, ttl=weir.Ttl("1h", time="event"))),
        (weir.ValueState(int, 0), weir.ValueState(int, 5)),
        (weir.ValueState(Small, Small(0)), weir.ValueState(Wide, Wide(0))),
    ],
    ids=["with a ttl", "another default", "a nullable field more"],
)
def test_a_state_goes_on(before, after, tmp_path):
    path = saved(process(process_class(before)), tmp_path)
    rows = goes_on(process(process_class(after)), path)
    told = last_of(rows, "told")
    first = after.default if isinstance(after.default, int) else 0
    old = {row["k"] for row in BEFORE}
    wanted = {key: n + (0 if key in old else first) for key, n in counts([*BEFORE, *AFTER]).items()}
    assert told == {key: n for key, n in wanted.items() if key in told}
    assert {row["note"] for row in rows} <= {"", "None"}


def test_a_renamed_state_goes_on(tmp_path):
    path = saved(process(process_class(weir.ValueState(int, 0))), tmp_path)
    made = process_class(weir.ValueState(int, 0, renamed_from="total"), "sum_")
    told = last_of(goes_on(process(made), path), "told")
    assert told == {key: n for key, n in counts([*BEFORE, *AFTER]).items() if key in told}


def test_a_longer_time_of_deduplicate_goes_on(tmp_path):
    path = saved(deduplicate(), tmp_path)
    rows = goes_on(deduplicate(), path)
    assert {row["k"] for row in rows} == {row["k"] for row in AFTER} - {row["k"] for row in BEFORE}
