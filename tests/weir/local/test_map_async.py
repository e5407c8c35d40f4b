"""``map_async``: bounded, in order or not, with a time-out, and nothing under way at a barrier."""

import asyncio

import pyarrow as pa
import pytest

import weir
from task_manager.subtasks.isolation import Isolation
from weir import testing
from weir.author.operator import OperatorContext
from weir.errors import FailureKind
from weir.operators.chain import OperatorChain
from weir.operators.stateless.async_map import AsyncMapOperator
from weir.operators.step_errors import StepError
from weir.rows.records import with_times
from weir.specs.async_map import MapAsyncSpec
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables

SCHEMA = {"id": int}
ROWS = [{"id": n} for n in range(50)]


class Service:
    """Answers when told to, or at once; counts how many wait."""

    def __init__(self):
        self.waiting = self.most = 0
        self.calls = []

    async def look_up(self, row):
        self.calls.append(row["id"])
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        # The later ones answer first.
        await asyncio.sleep(0.001 * (7 - row["id"] % 7))
        self.waiting -= 1
        return {"id": row["id"], "name": f"n{row['id']}"}


RESULT = {"id": int, "name": str}


def job(function, **options):
    flow = weir.Dataflow("job")
    events = flow.source("in", weir.JsonLines("none", schema=SCHEMA))
    events.map_async("look_up", function, RESULT, **options).sink("out", weir.Collect())
    return flow


def test_rows_leave_in_order_and_few_are_under_way():
    service = Service()
    result = testing.run(job(service.look_up, in_flight_max=6), {"in": ROWS})["out"]
    assert result == [{"id": n, "name": f"n{n}"} for n in range(50)]
    assert 2 <= service.most <= 6


def test_without_order_rows_leave_as_answers_come():
    service = Service()
    result = testing.run(job(service.look_up, in_flight_max=20, ordered=False), {"in": ROWS})[
        "out"
    ].to_dicts()
    assert sorted(row["id"] for row in result) == list(range(50)) != [row["id"] for row in result]
    assert service.most <= 20


def test_rows_keep_their_times():
    rows = [{"id": n, "_event_time_ms": 100 + n} for n in range(10)]
    result = testing.run(job(Service().look_up), {"in": rows})["out"].to_dicts(times=True)
    assert [row["_event_time_ms"] for row in result] == list(range(100, 110))


def test_nothing_is_under_way_at_a_barrier():
    service = Service()
    with testing.start(job(service.look_up, in_flight_max=4), {"in": ROWS[:20]}) as running:
        running.checkpoint()
        running.push("in", ROWS[20:30])
        running.restart()
        running.push("in", ROWS[30:])
        assert running.finish()["out"] == [{"id": n, "name": f"n{n}"} for n in range(50)]
    # What no checkpoint covered was asked for again, and nothing else.
    assert sorted(service.calls) == sorted([*range(50), *range(20, 30)])


class Passing:
    """What leaves a chain, in order, and whether a row was sent when a barrier would be."""

    def __init__(self):
        self.ids = []

    def emit(self, batch):
        self.ids += batch.column("id").to_pylist()


def chain_of(function, isolation=None, **options):
    settings = {"in_flight_max": 8, "timeout_ms": 1000, "ordered": True, **options}
    operator = AsyncMapOperator(MapAsyncSpec(function, weir.rows.schemas.to_schema(RESULT), **settings))
    chain = OperatorChain(
        [(operator, OperatorContext("job", "look_up", 0, 0, 1))],
        Passing(),
        lambda: None,
        StateTables(MemoryBackend(), 1 << 20, 128),
        isolation,
    )
    chain.open()
    return chain


def batch(*ids):
    return with_times(pa.record_batch({"id": pa.array(ids, pa.int64())}), 1, 2)


def test_a_call_under_way_does_not_hold_back_the_step_but_a_watermark():
    release = asyncio.Event()

    async def wait(row):
        if row["id"] == 1:
            await release.wait()
        return {"id": row["id"], "name": ""}

    chain = chain_of(wait)
    try:
        chain.process(batch(0, 1, 2))
        while chain.output.ids != [0]:
            chain.on_time()
        assert chain.due_us() == 0
        chain.operators[0]._loop._loop.call_soon_threadsafe(release.set)
        chain.on_watermark(5)
        assert chain.output.ids == [0, 1, 2]
        assert chain.due_us() > 0
    finally:
        chain.close()


def run_all(chain, rows):
    chain.process(rows)
    chain.drain()


async def fails(row):
    if row["id"] % 3 == 0:
        raise ValueError(f"no {row['id']}")
    return {"id": row["id"], "name": "x"}


async def sleeps(row):
    await asyncio.sleep(3600 if row["id"] == 2 else 0)
    return {"id": row["id"], "name": "x"}


async def answers_badly(row):
    return {"id": row["id"]}


@pytest.mark.parametrize(
    ("function", "message", "bad"),
    [
        (fails, "step 'look_up': function fails raised ValueError: no 3", 3),
        (sleeps, "step 'look_up': function sleeps took longer than 0.02 s", 2),
        (
            answers_badly,
            r"step 'look_up': the function returned another row than declared: missing \['name'\]",
            1,
        ),
    ],
)
def test_an_error_names_its_row(function, message, bad):
    chain = chain_of(function, timeout_ms=20)
    try:
        with pytest.raises(StepError, match=message) as caught:
            run_all(chain, batch(1, 2, 3))
        assert caught.value.kind is FailureKind.ROWS
        assert caught.value.batch.column("id").to_pylist() == [bad]
    finally:
        chain.close()


class Letters:
    def __init__(self):
        self.rejected, self.reasons = 0, []

    def reject(self, source, position, reason, raw, length_bytes=None):
        self.rejected += 1
        self.reasons.append((source, reason, raw))

    def close(self):
        pass


class NoErrors:
    def tell(self, step, error, rows=None):
        pass


@pytest.mark.parametrize("ordered", [True, False])
def test_rows_that_make_the_call_raise_are_put_aside(ordered):
    letters = Letters()
    isolation = Isolation(["look_up"], lambda step: letters, NoErrors())
    chain = chain_of(fails, isolation, in_flight_max=3, ordered=ordered)
    try:
        chain.process(batch(*range(10)))
        chain.process(batch(10, 12))
        assert chain.output.ids == [1, 2, 4, 5, 7, 8, 10]
        assert letters.rejected == 5
        assert letters.reasons[1] == (
            "step look_up",
            "function fails raised ValueError: no 3",
            b'{"id":3}',
        )
        assert chain.due_us() > 0
    finally:
        chain.close()


def test_closing_cancels_what_is_under_way():
    cancelled = []

    async def hangs(row):
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(row["id"])
            raise

    chain = chain_of(hangs, timeout_ms=3_600_000)
    chain.process(batch(1, 2))
    chain.operators[0]._wait(0.05)
    chain.close()
    assert sorted(cancelled) == [1, 2]


def plain(row):
    return row


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (plain, {}, "step 'look_up': plain is no async function; write async def, or use map"),
        (3, {}, "step 'look_up': expected a function or a class, got int"),
        (
            fails,
            {"in_flight_max": 0},
            "step 'look_up': in_flight_max is 0; it must be a whole number from 1 to 100,000",
        ),
        (fails, {"timeout": "soon"}, "step 'look_up': timeout: 'soon' is not a duration"),
    ],
)
def test_mistakes_are_told_when_the_graph_is_built(function, options, message):
    with pytest.raises(weir.GraphError, match=message):
        job(function, **options)
