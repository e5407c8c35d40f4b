"""What is told of one key, from the bytes that its operator has written."""

import datetime as dt
import decimal
import json

import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.weir.operators.queries.asked_states import GROUPS, Reading, ask, build
from tests.weir.state.retained_steps import Step
from weir.author.operator import OperatorContext
from weir.author.states import declared_states
from weir.operators.keyed.running_aggregates import KeyedAggregateOperator
from weir.operators.queries.answering import answer_one, asked_state
from weir.operators.queries.state_format import ABSENT, Cut
from weir.protocol.queries import QueryError, Question
from weir.questions.client import _texts
from weir.rows.records import with_times
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables


@pytest.mark.parametrize(
    ("state", "given", "expected"),
    [
        ("number", {}, 1),
        ("ratio", {}, 0.5),
        ("good", {}, True),
        ("day", {}, "2020-01-02"),
        ("text", {}, "text of bob"),
        ("short", {}, 5),
        ("items", {}, [1, 7]),
        (
            "names",
            {"prefix": "o", "reverse": True},
            [{"key": "other", "value": 2}, {"key": "one", "value": 1}],
        ),
        (
            "names",
            {"first": "other", "last": "two"},
            [{"key": "other", "value": 2}, {"key": "two", "value": 3}],
        ),
        ("numbers", {"first": "-1", "last": "3"}, [{"key": -1, "value": "a"}, {"key": 3, "value": "b"}]),
        ("numbers", {"first": "4", "last": "1"}, ABSENT),
        ("prices", {}, 9),
        ("prices", {"as_of_ms": 52}, 11),
        ("prices", {"as_of_ms": 23}, 12),
        ("prices", {"as_of_ms": 22}, ABSENT),
        (
            "prices",
            {"first": "37", "last": "53", "reverse": True},
            [
                {"value": 9, "valid_from": 53, "valid_to": None},
                {"value": 11, "valid_from": 38, "valid_to": 53},
                {"value": 12, "valid_from": 17, "valid_to": 38},
            ],
        ),
        ("windows", {}, [{"start": 38, "value": 11}, {"start": 53, "value": 9}]),
        ("windows", {"first": "17", "last": "38"}, [{"start": 38, "value": 11}]),
        ("visits", {"last": "36"}, [{"start": 36, "end": 38, "value": 11}]),
    ],
)
def test_one_key(graph, written, state, given, expected):
    assert ask(graph, written, state, "bob", **given) == expected


def test_a_map_whose_keys_are_numbers_has_no_prefixes(graph, written):
    with pytest.raises(
        QueryError, match="prefix is for maps whose keys are text; of the map 'numbers' give from"
    ):
        ask(graph, written, "numbers", "bob", prefix="2")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("state", "given"),
    [
        ("items", {}),
        ("names", {}),
        ("names", {"prefix": "o"}),
        ("numbers", {"first": "0"}),
        ("prices", {"first": "0"}),
        ("prices", {"first": "5", "last": "40"}),
        ("prices", {"first": "5", "last": "36"}),
        ("windows", {}),
        ("visits", {"last": "53"}),
    ],
)
def test_whoever_gives_a_limit_gets_the_first_entries_of_a_key_in_the_order_asked_for(
    graph, written, state, given, reverse
):
    all_of_them = ask(graph, written, state, "bob", reverse=reverse, **given)
    assert all_of_them == ask(graph, written, state, "bob", **given)[:: -1 if reverse else 1]
    for limit in range(1, len(all_of_them) + 1):
        found = ask(graph, written, state, "bob", reverse=reverse, limit=limit, cuts=True, **given)
        expected = all_of_them[:limit]
        assert found == (Cut(expected) if limit < len(all_of_them) else expected)


@pytest.mark.parametrize(
    ("key_type", "keys"),
    [
        (pl.Date, [dt.date(1960, 2, 29), dt.date(2026, 11, 23)]),
        (pl.Datetime("us"), [dt.datetime(1960, 2, 29, 1), dt.datetime(2026, 11, 23, 1, 2, 3, 4)]),
        (pl.Time, [dt.time(1, 2), dt.time(3, 4, 5, 6)]),
        (pl.Boolean, [False, True]),
        (pl.Duration("ms"), [dt.timedelta(seconds=-1.5), dt.timedelta(days=2)]),
        ((pl.String, pl.Int64), [("a", 2), ("b", 1)]),
        ((pl.Date, pl.Boolean), [(dt.date(1960, 2, 29), True), (dt.date(2026, 11, 23), False)]),
        ((pl.Duration("us"), pl.Datetime("us")), [(dt.timedelta(0, 1.5), dt.datetime(2026, 11, 23))] * 2),
    ],
)
def test_keys_of_maps_are_asked_as_they_are_shown(key_type, keys):
    class Maps(weir.KeyedProcess):
        found = weir.MapState(key_type, pl.Int64)

        def process(self, key, row, context):
            return ()

    flow = weir.Dataflow("asked", max_parallelism=GROUPS)
    rows = flow.source("rows", weir.JsonLines("none", schema={"k": str}))
    rows.key_by("k").process("all", Maps, {"k": str}).sink("out", weir.Blackhole())
    backend = MemoryBackend()
    step = Step(backend, {state.name: state for state in declared_states(Maps)}, GROUPS)
    with step.at("bob"):
        for number, key in enumerate(keys):
            step.handles["found"].put(key, number)
    step.tables.flush()
    graph, written = flow.build(), (backend, {"found": 2})
    shown = ask(graph, written, "found", "bob")
    for entry in shown:
        key = entry["key"]
        text = key if isinstance(key, str) else json.dumps(key)
        assert ask(graph, written, "found", "bob", first=text, last=text) == [entry]
    assert [entry["value"] for entry in shown] == ([0, 1] if keys[0] != keys[1] else [1])
    for key in keys:
        # As the client of Python writes them.
        given = _texts({"first": key, "last": key})
        assert len(ask(graph, written, "found", "bob", **given)) == 1
    with pytest.raises(QueryError, match="'\\[1, 2, 3\\]' is no key of the map 'found'"):
        ask(graph, written, "found", "bob", first="[1, 2, 3]")


def test_what_is_not_there_and_what_has_expired_is_absent(graph, written):
    for state in ("number", "text", "items", "names", "prices", "windows", "visits"):
        assert ask(graph, written, state, "nobody") is ABSENT
    assert ask(graph, written, "short", "bob", Reading(written[0], expired=True)) is ABSENT
    assert ask(graph, written, "prices", "bob", Reading(written[0], 69), as_of_ms=38) is ABSENT
    assert ask(graph, written, "windows", "bob", Reading(written[0], 84)) is ABSENT


@pytest.mark.parametrize(
    ("state", "given", "status", "says"),
    [
        ("none", {}, 404, "it has day, good, items"),
        ("number", {"first": "1"}, 400, "one value of each key"),
        ("number", {"as_of_ms": 1}, 400, "one value of each key"),
        ("items", {"limit": 1}, 413, "more than 1 entries: give limit"),
        ("prices", {"limit": 2, "first": "0"}, 413, "more than 2 entries: give limit"),
        ("items", {"first": "1"}, 400, "answered whole"),
        ("numbers", {"first": "x"}, 400, "no key of the map"),
        ("prices", {"first": "x"}, 400, "no time"),
        ("windows", {"as_of_ms": 1}, 400, "versioned"),
    ],
)
def test_questions_that_do_not_fit(graph, written, state, given, status, says):
    with pytest.raises(QueryError, match=says) as refused:
        ask(graph, written, state, "bob", **given)
    assert refused.value.status == status


def test_aggregates(graph):
    backend = MemoryBackend()
    node = next(node for node in graph.nodes if node.name == "sums")
    operator = KeyedAggregateOperator(node.spec)
    tables = StateTables(backend, 1 << 20, GROUPS)
    of_step = {"tables": tables.of("sums", {"": 9}), "schema": node.schema}
    operator.open(OperatorContext("asked", "sums", 1, 0, 1, max_parallelism=GROUPS, **of_step))
    prices = [decimal.Decimal(text) for text in ("-0.25", "1", "3.50")]
    batch = pa.RecordBatch.from_pydict(
        {
            "k": ["a", "a", "b"],
            "v": pa.array([1, 4, None], pa.int64()),
            "f": [0.5, -1.5, 2.0],
            "d": pa.array(prices, pa.decimal128(9, 2)),
        }
    )
    list(operator.process(with_times(batch, 0, 0)))
    live = next(iter(tables))
    for reading in (Reading(live_reader(live)), None):
        if reading is None:
            tables.flush()
            reading = Reading(backend)
        for state, a, b in (
            ("n", 2, 1),
            ("total", 5, None),
            ("least", -1.5, 2.0),
            ("mean", 2.5, None),
            ("paid", "0.75", "3.50"),
            ("most", "1.00", "3.50"),
            ("mean_paid", "0.375000", "3.500000"),
        ):
            for key, expected in (("a", a), ("b", b), ("c", ABSENT)):
                question = Question("sums", state, key)
                asked = asked_state(graph, question)
                group = asked.group_of(asked.keys.encode(key))
                assert answer_one(asked, reading, 9, group, question) == expected, (state, key)


def live_reader(table):
    class Live:
        get_many = staticmethod(table.get_stored)

    return Live()


def test_aggregates_of_one_cell_can_be_read_while_rows_are_taken_in():
    graph = build()
    names = ("n", "total", "least", "mean", "paid")
    whole = {name: asked_state(graph, Question("sums", name, "a")).format.whole for name in names}
    # The mean is a sum and a number, which are changed one after the other; a decimal has two cells.
    assert whole["mean"] is None is whole["paid"]
    assert [(whole[name].cell, whole[name].counts) for name in names[:3]] == [
        (0, True),
        (1, False),
        (2, False),
    ]
