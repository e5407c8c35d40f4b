"""Rows that are left out before windows that need the first ones of an order: results are those of all rows."""

import random

import numpy as np
import pyarrow as pa
import pytest

import weir
from benchmarks.law import window_steps
from benchmarks.law.steps import case_of, difference
from tests.effort import cases
from weir import testing
from weir.author.operator import OperatorContext
from weir.operators.windows.rows import rows_part
from weir.operators.windows.rows.rows_part import WindowRowsPartOperator, order_codes
from weir.plan.fingerprints import fingerprint_of
from weir.plan.rules import pre_aggregation
from weir.plan.stages import physical_graph
from weir.rows import row_watermarks
from weir.rows.records import EVENT_TIME_COLUMN, with_times
from weir.specs.row_order import OrderColumn
from weir.specs.window_parts import WindowRowsPartSpec
from weir.sql.ranking import Ordering

NUMBERS = (None, -(2**62), -7, -1, 0, 1, 7, 2**62)
FLOATS = (None, float("-inf"), -1.5, -0.0, 0.0, 1.5, float("inf"), float("nan"))
TIMES = (None, -86_400_000, 0, 86_400_000)
COLUMNS = {
    pa.int64(): (*NUMBERS, -(2**63), 2**63 - 1),
    pa.int8(): (None, -128, -1, 0, 127),
    pa.uint64(): (None, 0, 1, 2**63, 2**64 - 1),
    pa.bool_(): (None, False, True),
    pa.float64(): FLOATS,
    pa.float32(): FLOATS,
    pa.timestamp("ms"): TIMES,
    pa.timestamp("us", tz="UTC"): TIMES,
    pa.date32(): (None, -3, 0, 3),
    pa.time32("s"): (None, 0, 7),
    pa.duration("ns"): (None, -3, 0, 3),
    pa.string(): (None, "", "a", "ab", "ä", "b"),
    pa.decimal128(10, 2): (None, -3, 0, 3),
}
#: Types that have no numbers: their order is found by sorting.
SORTED = (pa.string(), pa.decimal128(10, 2))
SCHEMA = {"k": str, "at": int, "v": weir.Nullable(int), "t": str}
FIRST_SQL = """
SELECT k, at, v, t, place FROM (SELECT k, at, v, t, ROW_NUMBER() OVER (
    PARTITION BY window_start, window_end, k ORDER BY v DESC, t) AS place
    FROM TUMBLE(TABLE rows, at, INTERVAL '1' SECOND)) WHERE place <= 2"""


def is_before(one, other, order):
    """Whether a value is before another in an order: NaN is above all numbers, null where the order says."""
    if one is None or other is None:
        return one is not other and (one is None) == order.nulls_first
    ranks = [(value != value, 0 if value != value else value) for value in (one, other)]
    return ranks[0] < ranks[1] if order.ascending else ranks[0] > ranks[1]


@pytest.mark.parametrize("ascending", [False, True])
@pytest.mark.parametrize("nulls_first", [False, True])
@pytest.mark.parametrize("dtype", COLUMNS, ids=str)
def test_numbers_of_values_are_in_their_order(dtype, nulls_first, ascending):
    order = OrderColumn("x", ascending, nulls_first)
    values = COLUMNS[dtype]
    for given in (values, values[1:]):
        # A part of a longer column.
        codes = order_codes(pa.array([values[0], *given], dtype).slice(1), order)
        if dtype in SORTED:
            assert codes is None
            continue
        for one, code in zip(given, codes.tolist(), strict=True):
            for other, other_code in zip(given, codes.tolist(), strict=True):
                assert not (is_before(one, other, order) and code < other_code), (one, other)


def operator(order, rows, keys=("k",), window=None, rows_min=0):
    made = WindowRowsPartOperator(
        WindowRowsPartSpec(keys, window or weir.tumbling(10), order, rows, rows_min)
    )
    made.open(OperatorContext("job", "w.part", 1, 0, 1))
    return made


def needed(rows, names, order, bound, pane_ms):
    """Numbers of the rows that fewer than ``bound`` others of their key and pane are before, in plain Python."""

    def before(one, other):
        for each in order:
            for first, second, told in ((one, other, True), (other, one, False)):
                if is_before(first[each.name], second[each.name], each):
                    return told
        return False

    groups = [(*(row[name] for name in names), row["at"] // pane_ms) for row in rows]
    return {
        number
        for number, row in enumerate(rows)
        if sum(
            groups[at] == groups[number] and before(other, row)
            for at, other in enumerate(rows)
            if not other["late"]
        )
        < bound
        or row["late"]
    }


@pytest.mark.parametrize("seed", range(cases(60, 3_000)))
def test_all_rows_stay_that_may_be_among_the_first(seed, monkeypatch):
    monkeypatch.setattr(rows_part, "_NEEDED_SHARE", 1.0)
    monkeypatch.setattr(rows_part, "_KEPT_SHARE", 1.0)
    monkeypatch.setattr(rows_part, "_LEFT_SHARE", 0.0)
    chance = random.Random(seed)
    count = chance.randrange(2, 80)
    types = chance.sample(list(COLUMNS), 2)
    order = tuple(
        OrderColumn(name, chance.random() < 0.5, chance.random() < 0.5)
        for name in ("x", "y")[: chance.choice([1, 2])]
    )
    has_late = chance.random() < 0.5
    keys = chance.choice([("k",), ("k", "j"), ("j",)])
    rows = [
        {
            "k": chance.choice(["a", "b", None]),
            "j": chance.randrange(2),
            "x": chance.choice(COLUMNS[types[0]]),
            "y": chance.choice(COLUMNS[types[1]]),
            "at": number // 3 - 5 + chance.randrange(3),
            "late": has_late and chance.random() < 0.3,
        }
        for number in range(count)
    ]
    columns = {
        "k": pa.array([row["k"] for row in rows], pa.string()),
        "j": pa.array([row["j"] for row in rows], pa.int64()),
        "x": pa.array([row["x"] for row in rows], types[0]),
        "y": pa.array([row["y"] for row in rows], types[1]),
        "number": pa.array(range(count), pa.int64()),
    }
    times = np.array([row["at"] for row in rows], np.int64)
    batch = with_times(pa.record_batch(columns), times, 0)
    if has_late:
        late = np.array([row["late"] for row in rows])
        batch = row_watermarks.with_column(batch, np.where(late, times + 1, times - 100))
    bound, pane_ms = chance.choice([1, 2, 7]), chance.choice([4, 10])
    window = weir.sliding(3 * pane_ms, pane_ms) if chance.random() < 0.5 else weir.tumbling(pane_ms)
    (out,) = operator(order, bound, keys, window).process(batch)
    found = out.column("number").to_pylist()
    assert found == sorted(found)
    assert out.column(EVENT_TIME_COLUMN).to_pylist() == times[found].tolist()
    assert needed(rows, keys, order, bound, pane_ms) <= set(found)


def batch_of(values, keys=None, at=0):
    columns = {
        "k": pa.array(keys or ["a"] * len(values)),
        "v": pa.array(values, pa.int64()),
        "t": pa.array([str(value) for value in values]),
    }
    return with_times(pa.record_batch(columns), np.full(len(values), at, np.int64), 0)


def kept(made, batch):
    (out,) = made.process(batch)
    return out.column("v").to_pylist()


def test_batches_pass_without_a_look_for_a_while_where_keys_hardly_repeat():
    made = operator((OrderColumn("v"),), 1)
    numbers = list(range(40))
    assert kept(made, batch_of(numbers)) == [39]
    assert kept(made, batch_of(numbers, [str(number) for number in numbers])) == numbers
    counts = [len(kept(made, batch_of(numbers))) for _ in range(17)]
    assert counts == [40] * 15 + [1] * 2


def test_where_many_are_equal_in_the_first_column_the_others_decide():
    made = operator((OrderColumn("k"), OrderColumn("v", ascending=True)), 2, keys=())
    assert kept(made, batch_of([5, 1, 4, 0, 3, 2, 9, 8])) == [1, 0]
    assert kept(operator((OrderColumn("t"),), 1), batch_of([5, 1, 4, 9, 3, 9, 0, 8])) == [9, 9]
    assert kept(operator((OrderColumn("v"),), 1, rows_min=9), batch_of([5, 1, 4, 0, 3, 2, 9, 8])) != [9]


def test_late_rows_stay_and_take_no_place():
    made = operator((OrderColumn("v"),), 1)
    batch = batch_of([5, 1, 4, 9, 3, 2, 0, 8], at=7)
    times = batch.column(EVENT_TIME_COLUMN).to_numpy()
    late = np.array([0, 0, 0, 1, 0, 0, 1, 0])
    assert kept(made, row_watermarks.with_column(batch, times - 5 + 6 * late)) == [9, 0, 8]
    assert kept(made, row_watermarks.with_column(batch, times + 1)) == [5, 1, 4, 9, 3, 2, 0, 8]


@pytest.mark.parametrize("seed", range(cases(8, 200)))
@pytest.mark.parametrize(
    "step",
    [step for step in window_steps.STEPS if step.name.startswith("first ")],
    ids=lambda step: step.name,
)
def test_windows_say_what_plain_python_says(step, seed, monkeypatch):
    monkeypatch.setattr(rows_part, "_NEEDED_SHARE", 1.0)
    monkeypatch.setattr(rows_part, "_PASSED", 0)
    assert difference(step, case_of(step, seed, 80)) is None


def sql_flow(query=FIRST_SQL, **sources):
    flow = weir.Dataflow("first")
    events = weir.JsonLines("rows.jsonl", schema=SCHEMA, event_time="at")
    rows = flow.source("rows", events, watermark=weir.bounded_out_of_orderness("50ms"), parallelism=2)
    flow.sql(query, step="best", rows=rows).sink("out", weir.Collect())
    return flow


def told(rows, batch_rows):
    """What SQL says of rows that come in batches of so many, with a restart; and how many were late."""
    with testing.start(sql_flow(), watermarks="follow_rows") as job:
        for number, start in enumerate(range(0, len(rows), batch_rows)):
            job.push("rows", rows[start : start + batch_rows])
            if number == 3:
                job.checkpoint()
                job.restart()
        result = job.finish()
        return sorted(result["out"], key=str), result.late_rows


def test_sql_says_the_same_of_batches_and_of_single_rows_and_counts_late_ones_alike(monkeypatch):
    chance = random.Random(3)
    rows = [
        {
            "k": chance.choice("ab"),
            "at": at + chance.choice([0, 0, 0, -40, -1_500 * (at % 30 == 0)]),
            "v": None if chance.random() < 0.2 else chance.randrange(30),
            "t": f"{chance.randrange(10**6)}",
        }
        for at in range(0, 9_000, 3)
    ]
    wanted = told(rows, 250)
    monkeypatch.setattr(pre_aggregation, "ROWS_MIN", 2)
    sent = []
    process = WindowRowsPartOperator.process

    def noted(self, batch):
        (out,) = process(self, batch)
        sent.append(out.num_rows / batch.num_rows)
        return (out,)

    monkeypatch.setattr(WindowRowsPartOperator, "process", noted)
    assert told(rows, 250) == wanted
    assert sum(wanted[1].values()) > 20
    assert sum(sent) < 0.3 * len(sent)


@pytest.mark.parametrize("before", [True, False])
def test_a_savepoint_goes_on_with_the_step_and_without_it(before, monkeypatch):
    chance = random.Random(4)
    rows = [
        {"k": chance.choice("ab"), "at": at, "v": chance.randrange(9), "t": str(at)}
        for at in range(0, 1_800, 3)
    ]

    monkeypatch.setattr(pre_aggregation, "ROWS_MIN", 2)
    part_of = pre_aggregation._part_of

    def end(has_step, savepoint=None):
        monkeypatch.setattr(pre_aggregation, "_part_of", part_of if has_step else lambda spec: None)
        if savepoint is None:
            with testing.start(sql_flow()) as job:
                job.push("rows", rows[:500])
                return job.savepoint()
        with testing.start(sql_flow(), from_savepoint=savepoint) as job:
            job.push("rows", rows[500:])
            return job.finish()["out"]

    found = end(not before, end(before))
    wanted = [
        (*row.values(), place)
        for start in (0, 1_000)
        for key in "ab"
        for place, row in enumerate(
            sorted(
                (row for row in rows if row["k"] == key and start <= row["at"] < start + 1_000),
                key=lambda row: (-row["v"], row["t"]),
            )[:2],
            1,
        )
    ]
    assert sorted(tuple(row[name] for name in (*SCHEMA, "place")) for row in found) == sorted(wanted)


def best(key, window, rows):
    """A function that needs all rows."""
    return rows.select("v")


ORDERING = Ordering((("v", True, False),), 1, "place", False)


def stages(window, function, late=False, **settings):
    flow = weir.Dataflow("first")
    events = weir.JsonLines("rows.jsonl", schema=SCHEMA, event_time="at")
    windowed = flow.source("rows", events).key_by("k").window(window, **settings)
    columns = {"v": weir.Nullable(int)} if function is best else {"at": int, **SCHEMA, "place": int}
    columns.pop("k", None)
    told = windowed.process("w", function, columns)
    told.sink("out", weir.Collect())
    if late:
        told.side_output("late").sink("late", weir.Collect())
    before = fingerprint_of(flow.build())
    found = [stage.name for stage in physical_graph(flow.build()).stages]
    # The job is the same: it goes on from checkpoints of the time before there was such a step.
    assert [node.name for node in flow.build().nodes][:3] == ["rows", "w", "out"]
    assert fingerprint_of(flow.build()) == before
    return found


def test_the_planner_puts_the_step_where_no_row_that_counts_is_left_out():
    for window in (weir.tumbling(10), weir.sliding(20, 10), weir.cumulative(20, 10)):
        assert stages(window, ORDERING)[0] == "rows -> w.part"
    assert stages(weir.session(10), ORDERING)[0] == "rows"
    assert stages(weir.tumbling(10, time="processing"), ORDERING)[0] == "rows"
    assert stages(weir.tumbling(10), ORDERING, late=True)[0] == "rows"
    assert stages(weir.tumbling(10), ORDERING, allowed_lateness=5)[0] == "rows"
    assert stages(weir.tumbling(10), best)[0] == "rows"
    sql = [stage.name for stage in physical_graph(sql_flow().build()).stages]
    assert sql[0].endswith(".part")
