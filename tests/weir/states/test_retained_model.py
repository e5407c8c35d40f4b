"""Random use of states with a retention agrees with plain Python, whatever the runtime does between two batches."""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weir
import weir.testing
from tests.effort import cases
from tests.weir.state.retained_steps import Step
from tests.weir.state.slow_memory import SlowMemory
from weir.state.handles.declarations import NOT_PUT, OPEN
from weir.state.stores.memory import MemoryBackend

RETENTION_MS = 20
#: A dozen entries: nearly every batch evicts.
TINY_CACHE_BYTES = 4_000
STATES = {
    "versions": lambda: weir.VersionedState(pl.Int64, retention=f"{RETENTION_MS}ms"),
    "windows": lambda: weir.WindowState(pl.Int64, retention=f"{RETENTION_MS}ms"),
    "sessions": lambda: weir.SessionState(pl.Int64, retention=f"{RETENTION_MS}ms"),
}
TIMES = st.integers(0, 80)
#: How long after the watermark a row is.
LEADS = st.integers(0, 40)
VALUES = st.one_of(st.none(), st.integers(0, 9))
OPERATIONS = st.one_of(
    st.tuples(st.just("version"), st.sampled_from("abc"), LEADS, TIMES, VALUES),
    st.tuples(st.just("window"), st.sampled_from("abc"), LEADS, TIMES, VALUES),
    st.tuples(st.just("session"), st.sampled_from("abc"), LEADS, TIMES, st.integers(0, 9)),
    st.sampled_from([("flush",), ("capture",), ("sweep",), ("reopen",)]),
    st.tuples(st.just("watermark"), TIMES),
)


class Model:
    """What one key has: all that was ever put, and what was put later for the same time in its place."""

    def __init__(self):
        self.versions, self.windows, self.sessions = {}, {}, {}


@settings(max_examples=cases(25), deadline=None)
@given(st.lists(OPERATIONS, max_size=40), LEADS, st.sampled_from([MemoryBackend, SlowMemory]))
def test_states_agree_with_plain_python(operations, seen_after, make_store):
    backend = make_store()
    step = Step(backend, {name: make() for name, make in STATES.items()}, cache=TINY_CACHE_BYTES)
    models = {key: Model() for key in "abc"}
    watermark = 0
    step.times.advance(0)
    for operation, *arguments in operations:
        if operation == "watermark":
            watermark = max(watermark, arguments[0])
            step.times.advance(arguments[0])
        elif operation in ("version", "window", "session"):
            key, lead, at, value = arguments
            kind = operation + "s"
            taken = at >= watermark + lead - RETENTION_MS
            with step.at(key, watermark + lead):
                put(step.handles[kind], kind, models[key], at, value, taken)
        elif operation == "flush":
            step.tables.flush()
        elif operation == "capture":
            for capture in step.tables.capture():
                capture.write()
        elif operation == "sweep":
            step.sweep()
        else:
            step.tables.flush()
            times = step.times
            step = Step(backend, {name: make() for name, make in STATES.items()}, cache=TINY_CACHE_BYTES)
            step.times.advance(times.watermark_ms)
        for key, model in models.items():
            # A row ahead, and then one that is not.
            for now in (watermark + seen_after, watermark):
                with step.at(key, now):
                    check(step.handles, model, now - RETENTION_MS)


def put(handle, kind, model, at, value, taken):
    if kind == "versions":
        later = min((time for time in model.versions if time > at), default=OPEN)
        ended = handle.put(value, at)
        assert ended == (later if taken else NOT_PUT)
        if taken:
            model.versions[at] = value
    elif kind == "windows":
        assert handle.put(value, at) is taken
        if taken:
            model.windows[at] = value
    else:
        assert handle.put(value, at - 5, at) is taken
        if taken:
            model.sessions[at] = value


def check(handles, model, cut):
    newest = max(model.versions, default=None)
    for as_of in (*range(0, 85, 7), None):
        at = max((time for time in model.versions if as_of is None or time <= as_of), default=None)
        known = at is not None and (at == newest or (as_of is not None and as_of >= cut))
        assert handles["versions"].get(as_of) == (model.versions[at] if known else None)
    everything = list(handles["versions"].fetch())
    assert everything[::-1] == list(handles["versions"].fetch(reverse=True))
    assert all(each.valid_to_ms is None or each.valid_from_ms < each.valid_to_ms for each in everything)
    windows = [item for item in sorted(model.windows.items()) if item[0] >= cut and item[1] is not None]
    assert list(handles["windows"].fetch()) == windows
    assert list(handles["windows"].fetch(10, 40, reverse=True)) == [
        item for item in windows[::-1] if 10 <= item[0] <= 40
    ]
    sessions = [
        (end - 5, end, value)
        for end, value in sorted(model.sessions.items())
        if end >= max(cut, 20) and end <= 45
    ]
    assert list(handles["sessions"].find(20, 40)) == sessions


class Prices(weir.KeyedProcess):
    prices = weir.VersionedState(pl.Int64, retention="30ms")

    def process(self, key, row, context):
        ended = self.prices.put(row["price"], row["at"])
        yield {"item": key[0], "ended": ended}


def test_a_restarted_job_and_one_from_a_savepoint_take_nothing_late(tmp_path):
    def build() -> weir.Dataflow:
        flow = weir.Dataflow("prices")
        schema = {"item": str, "price": int, "at": int}
        source = weir.JsonLines("none", schema=schema, event_time="at")
        priced = flow.source("prices", source).key_by("item")
        priced.process("kept", Prices, {"item": str, "ended": int}, parallelism=2).sink(
            "out", weir.Blackhole()
        )
        return flow

    with weir.testing.start(build()) as job:
        job.push("prices", [{"item": "a", "price": 1, "at": 53}, {"item": "a", "price": 2, "at": 1_000}])
        job.advance_watermark("prices", 1_000)
        job.checkpoint()
        job.push("prices", [{"item": "a", "price": 3, "at": 969}])
        assert job.rows("kept").to_polars()["ended"].to_list() == [OPEN, OPEN, NOT_PUT]
        job.restart()
        job.push("prices", [{"item": "a", "price": 3, "at": 970}])
        assert job.rows("kept").to_polars()["ended"].to_list()[-1] == 1_000
        job.savepoint(tmp_path / "savepoint")
    with weir.testing.start(build(), from_savepoint=tmp_path / "savepoint") as job:
        job.push("prices", [{"item": "a", "price": 4, "at": 969}, {"item": "a", "price": 4, "at": 999}])
        assert job.rows("kept").to_polars()["ended"].to_list() == [NOT_PUT, 1_000]


def test_another_kind_of_state_under_the_name_is_refused(tmp_path):
    def build(state) -> weir.Dataflow:
        class Process(weir.KeyedProcess):
            kept = state

            def process(self, key, row, context):
                return ()

        flow = weir.Dataflow("prices")
        source = weir.JsonLines("none", schema={"item": str})
        flow.source("prices", source).key_by("item").process("kept", Process, {"item": str}).sink(
            "out", weir.Blackhole()
        )
        return flow

    with weir.testing.start(build(weir.WindowState(pl.Int64, retention="1s"))) as job:
        job.push("prices", [{"item": "a"}])
        job.savepoint(tmp_path / "savepoint")
    for changed, says in (
        (weir.WindowState(pl.Int64, retention="1s", duplicates=True), "window_duplicates<int64>"),
        (weir.VersionedState(pl.Int64, retention="1s"), "versioned<int64>"),
    ):
        with (
            pytest.raises(weir.WeirError, match=says),
            weir.testing.start(build(changed), from_savepoint=tmp_path / "savepoint"),
        ):
            pass
