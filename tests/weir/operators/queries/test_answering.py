"""Answers about every kind of state, from the bytes that its operator has written."""

import datetime as dt
import decimal
import json

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.weir.state.retained_steps import Step
from weir.client import key_text
from weir.keys import key_bytes
from weir.operators.base import OperatorContext
from weir.operators.keyed.aggregate_functions import cell_count
from weir.operators.keyed.running_aggregates import KeyedAggregateOperator
from weir.operators.queries.answering import answer_one, answer_range, asked_state
from weir.operators.queries.key_text import KeyText
from weir.operators.queries.merging import merged_runs
from weir.operators.queries.reading import StoredReading
from weir.operators.queries.state_format import ABSENT, Cut
from weir.protocol.queries import QueryError, Question
from weir.questions.json_values import plain
from weir.records import with_times
from weir.state import layout
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.accumulators import encode_values
from weir.state.tables.expiry import UNDATED
from weir.state.tables.opened import StateTables
from weir.states import declared_states

GROUPS = 4


def table_of(page):
    """The batches of a page, together."""
    return pa.Table.from_batches(list(page.batches()))


class Everything(weir.KeyedProcess):
    number = weir.ValueState(pl.Int64)
    ratio = weir.ValueState(pl.Float64)
    good = weir.ValueState(pl.Boolean)
    day = weir.ValueState(pl.Date)
    text = weir.ValueState(pl.String)
    short = weir.ValueState(pl.Int64, ttl=weir.Ttl("10ms"))
    items = weir.ListState(pl.Int64)
    names = weir.MapState(pl.String, pl.Int64)
    numbers = weir.MapState(pl.Int64, pl.String)
    prices = weir.VersionedState(pl.Int64, retention="30ms")
    windows = weir.WindowState(pl.Int64, retention="30ms")
    visits = weir.SessionState(pl.Int64, retention="30ms")

    def process(self, key, row, context):
        return ()


def build():
    flow = weir.Dataflow("asked", max_parallelism=GROUPS)
    source = weir.JsonLines("none", schema={"k": str, "v": int, "f": float, "d": pl.Decimal(9, 2)})
    keyed = flow.source("rows", source).key_by("k")
    keyed.process("all", Everything, {"k": str}).sink("all_out", weir.Blackhole())
    numbers = {"total": weir.sum("v"), "least": weir.min("f"), "mean": weir.mean("v")}
    decimals = {"paid": weir.sum("d"), "most": weir.max("d"), "mean_paid": weir.mean("d")}
    keyed.aggregate("sums", n=weir.count(), **numbers, **decimals).sink("sums_out", weir.Blackhole())
    return flow.build()


class Reading(StoredReading):
    """A store as it is."""

    def __init__(self, backend, watermark_ms=UNDATED, expired=False):
        self.watermark_ms = watermark_ms
        self._backend, self._expired, self.numbers = backend, expired, {}

    def get_many(self, keys):
        return self._backend.get_many(keys)

    def number_of(self, state):
        return self.numbers[state]

    def check(self):
        pass

    def scan(self, start, stop, *, reverse=False):
        return self._backend.scan(start, stop, reverse=reverse)

    def is_expired(self, stamp):
        return self._expired


@pytest.fixture(scope="module")
def graph():
    return build()


@pytest.fixture
def written():
    """A store with some keys in every state; and the number of each state."""
    backend = MemoryBackend()
    states = {state.name: state for state in declared_states(Everything)}
    step = Step(backend, states, GROUPS)
    handles = step.handles
    for number, key in enumerate(("ann", "bob", "bea")):
        with step.at(key):
            handles["number"].value, handles["ratio"].value = number, number / 2
            handles["good"].value, handles["text"].value = number == 1, f"text of {key}"
            handles["day"].value, handles["short"].value = dt.date(2020, 1, 1 + number), 5
            handles["items"].extend([number, 7])
            handles["names"].update({"one": 1, "other": 2, "two": 3})
            handles["numbers"].update({-1: "a", 3: "b", 20: "c"})
            for at, price in ((0, 8), (4, 10), (17, 12), (38, 11), (53, 9)):
                handles["prices"].put(price, at)
                handles["windows"].put(price, at)
                handles["visits"].put(price, at - 2, at)
    step.tables.flush()
    return backend, {name: 2 + index for index, name in enumerate(sorted(states))}


def ask(graph, written, state, key, reading=None, **given):
    backend, numbers = written
    question = Question("all", state, key, **given)
    asked = asked_state(graph, question)
    group = asked.group_of(asked.keys.encode(key))
    return answer_one(asked, reading or Reading(backend), numbers[state], group, question)


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
        ((pl.String, pl.Int64), [("a", 2), ("b", 1)]),
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
    assert [entry["value"] for entry in shown] == [0, 1]


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


def page(graph, written, state, **given):
    backend, numbers = written
    question = Question("all", state, None, "checkpoint", **given)
    asked = asked_state(graph, question)
    return answer_range(asked, Reading(backend), numbers[state], range(GROUPS), question, lambda: None)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["ann", "bea", "bob"]),
        ({"reverse": True}, ["bob", "bea", "ann"]),
        ({"first": "ann", "last": "bea"}, ["ann", "bea"]),
        ({"first": "b"}, ["bea", "bob"]),
        ({"prefix": "be"}, ["bea"]),
        ({"first": "z", "last": "a"}, []),
        ({"prefix": ""}, ["ann", "bea", "bob"]),
        ({"prefix": "\U0010ffff"}, []),
        ({"after": b"bea".hex()}, ["bob"]),
        ({"after": b"bea".hex(), "reverse": True}, ["ann"]),
    ],
)
@pytest.mark.parametrize("state", ["number", "text"])
def test_ranges_over_keys(graph, written, state, given, expected):
    assert [row["key"] for row in page(graph, written, state, **given).rows] == expected


def test_pages_and_counts(graph, written):
    first = page(graph, written, "number", limit=2)
    assert ([row["value"] for row in first.rows], first.after) == ([0, 2], b"bea")
    last = page(graph, written, "number", limit=2, after=first.after.hex())
    assert ([row["value"] for row in last.rows], last.after) == ([1], None)
    assert page(graph, written, "number", counts=True).count == 3
    assert page(graph, written, "number", counts=True, first="b").count == 2
    assert page(graph, written, "text", counts=True, prefix="be").count == 1
    assert page(graph, written, "number", counts=True, first="z").count == 0


@pytest.mark.parametrize(
    ("state", "given", "expected"),
    [
        ("items", {}, [[0, 7], [2, 7], [1, 7]]),
        (
            "names",
            {},
            [[{"key": "one", "value": 1}, {"key": "other", "value": 2}, {"key": "two", "value": 3}]] * 3,
        ),
        ("prices", {}, [9, 9, 9]),
        ("prices", {"as_of_ms": 52}, [11, 11, 11]),
        ("prices", {"as_of_ms": 22}, []),
        (
            "prices",
            {"time_from_ms": 50, "time_to_ms": 53},
            [
                [
                    {"value": 11, "valid_from": 38, "valid_to": 53},
                    {"value": 9, "valid_from": 53, "valid_to": None},
                ]
            ]
            * 3,
        ),
        ("windows", {"time_from_ms": 17, "time_to_ms": 38}, [[{"start": 38, "value": 11}]] * 3),
        ("visits", {"time_to_ms": 36}, [[{"start": 36, "end": 38, "value": 11}]] * 3),
    ],
)
def test_ranges_over_keys_with_several_entries(graph, written, state, given, expected):
    found = page(graph, written, state, **given)
    assert [row["key"] for row in found.rows] == ["ann", "bea", "bob"][: len(expected)]
    assert [row["value"] for row in found.rows] == expected
    assert table_of(found).column("value").to_pylist() == expected
    assert page(graph, written, state, counts=True, **given).count == len(expected)
    backwards = page(graph, written, state, reverse=True, first="b", **given)
    assert backwards.rows == [row for row in found.rows[::-1] if row["key"] != "ann"]
    assert [row["key"] for row in page(graph, written, state, limit=1, **given).rows] == ["ann"][
        : len(expected)
    ]


def test_keys_of_different_lengths_are_in_order():
    backend = MemoryBackend()
    step = Step(backend, {state.name: state for state in declared_states(Everything)}, GROUPS)
    keys = ["", "a", "aa", "ab", "aba", "b", "ba", "\U0010ffff", "z" * 300]
    for key in keys:
        with step.at(key):
            step.handles["items"].extend([len(key)])
    step.tables.flush()
    numbers = {name: 2 + index for index, name in enumerate(sorted(step.handles))}
    graph = build()

    def listed(**given):
        return [row["key"] for row in page(graph, (backend, numbers), "items", **given).rows]

    ordered = sorted(keys, key=str.encode)
    assert listed() == ordered
    assert listed(reverse=True) == ordered[::-1]
    assert listed(first="a", last="ab") == ["a", "aa", "ab"]
    assert listed(first="aa", last="b", reverse=True) == ["b", "aba", "ab", "aa"]
    assert listed(prefix="ab") == ["ab", "aba"]
    assert listed(after=b"aa".hex(), limit=2) == ["ab", "aba"]


@pytest.mark.parametrize(
    ("state", "given", "says"),
    [
        ("number", {"as_of_ms": 1}, "versioned"),
        ("number", {"time_from_ms": 1}, "for versions, windows and sessions"),
        ("names", {"time_to_ms": 1}, "for versions, windows and sessions"),
        ("names", {"as_of_ms": 1}, "versioned"),
    ],
)
def test_ranges_that_do_not_fit(graph, written, state, given, says):
    with pytest.raises(QueryError, match=says) as refused:
        page(graph, written, state, **given)
    assert refused.value.status == 400


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


def test_keys_as_text():
    one = KeyText([pa.field("n", pa.int32())])
    assert one.decode([one.encode("-7"), one.encode("12")]) == [-7, 12]
    many = KeyText([pa.field("s", pa.string()), pa.field("n", pa.int64()), pa.field("d", pa.date32())])
    assert many.decode([many.encode('["a", 5, "2020-02-03"]')]) == [["a", 5, "2020-02-03"]]
    assert many.decode([many.encode('["a", null, null]')]) == [["a", None, None]]
    for text in ("a", '["a", 5]', '["a", "x", "2020-02-03"]'):
        with pytest.raises(QueryError):
            many.encode(text)
    with pytest.raises(QueryError, match=r"no int32 \(n\)"):
        one.encode("twelve")


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (pa.string(), "ü/☃"),
        (pa.string(), ""),
        (pa.int64(), -(2**63)),
        (pa.uint64(), 2**64 - 1),
        (pa.bool_(), True),
        (pa.date32(), dt.date(2020, 2, 3)),
        (pa.timestamp("ms"), dt.datetime(2020, 2, 3, 4, 5, 6, 120_000)),
        (pa.timestamp("s"), dt.datetime(2020, 2, 3)),
        (pa.timestamp("us", "UTC"), dt.datetime(2020, 2, 3, 4, 5, 6, 7, tzinfo=dt.UTC)),
        (pa.time64("us"), dt.time(4, 5, 6, 7)),
        (pa.duration("ms"), dt.timedelta(minutes=-3, milliseconds=1)),
        (pa.binary(), b"ab"),
        (pa.binary(), b"\xff\x00"),
        (pa.binary(), b"base64:a"),
    ],
)
def test_a_key_is_asked_for_as_the_client_has_it_and_as_answers_show_it(dtype, value):
    names = ["a", "b"]
    for count in (1, 2):
        keys = KeyText([pa.field(name, dtype) for name in names[:count]])
        columns = [pa.array([value], dtype)] * count
        key = key_bytes(pa.RecordBatch.from_arrays(columns, names=names[:count]), names[:count]).key(0)
        (shown,) = keys.decode([key])
        if isinstance(value, bytes):
            shown = f"base64:{shown}" if count == 1 else [f"base64:{part}" for part in shown]
        assert keys.encode(shown if isinstance(shown, str) else json.dumps(shown)) == key
        assert keys.encode(key_text(value if count == 1 else (value, value))) == key


def test_keys_that_lose_digits_are_refused():
    for dtype, text in (
        (pa.timestamp("ms"), "2020-02-03T04:05:06.0001"),
        (pa.time32("ms"), "04:05:06.000001"),
        (pa.duration("s"), "1.5"),
        (pa.duration("s"), "soon"),
        (pa.time64("us"), "noon"),
        (pa.binary(), "base64:?"),
    ):
        with pytest.raises(QueryError, match="is no ") as refused:
            KeyText([pa.field("k", dtype)]).encode(text)
        assert refused.value.status == 400


def test_values_as_json():
    given = {"at": dt.datetime(2020, 1, 1), "by": b"\xff", "of": [decimal.Decimal("1.50"), float("nan")]}
    assert plain(given) == {"at": "2020-01-01T00:00:00", "by": "/w==", "of": ["1.50", "nan"]}


def test_rows_in_arrow_are_those_in_json(graph, written):
    for state in ("number", "text", "day"):
        found = page(graph, written, state, arrow=True)
        table = pa.Table.from_batches(found.batches())
        assert table["key"].to_pylist() == ["ann", "bea", "bob"]
        values = [plain(value) for value in table["value"].to_pylist()]
        assert values == [row["value"] for row in found.rows]
    assert [
        batch.num_rows for batch in page(graph, written, "number", arrow=True, prefix="none").batches()
    ] == [0]


@pytest.mark.parametrize("reverse", [False, True])
def test_pages_over_many_groups_have_every_key_once_and_in_order(reverse):
    backend, groups = MemoryBackend(), 40
    keys = [f"{number * 7919 % 3000:04}".encode() for number in range(3000)]
    # Groups of very different sizes.
    backend.write(
        [(layout.key_prefix(number % 7 * number % groups, 5) + key, b"v") for number, key in enumerate(keys)]
    )
    bounds = [[layout.key_prefix(group, 5) + key for key in (b"0100", b"2900")] for group in range(groups)]
    for rows in (10, 1_000, 100_000):
        runs = [backend.scan(*each, reverse=reverse) for each in bounds]
        blocks = list(
            merged_runs(runs, rows, lambda: None, reverse=reverse, cut_bytes=layout.NO_NAMESPACE_HEADER_BYTES)
        )
        expected = sorted((key for key in keys if b"0100" <= key < b"2900"), reverse=reverse)
        assert [key for block in blocks for key, _ in block] == expected


def test_many_rows_are_read_and_made_into_arrow_some_at_a_time(graph):
    """Subtasks wait for what holds the GIL: between two looks whether a scan may go on there is little."""
    asked = asked_state(graph, Question("sums", "n", None))
    backend, number, rows = MemoryBackend(), 1, 20_000
    cells = np.zeros((1, cell_count(asked.node.spec.aggregates, asked.node.schema)), dtype=np.int64)
    value = encode_values(cells, np.zeros((1, -(-cells.shape[1] // 8)), dtype=np.uint8))
    keys = [b"%06d" % index for index in range(rows)]
    backend.write(
        [(layout.key_prefix(index % GROUPS, number) + key, value) for index, key in enumerate(keys)]
    )
    read, read_at_looks = 0, [0]

    class Counted(Reading):
        def scan(self, start, stop, *, reverse=False):
            nonlocal read
            for entry in super().scan(start, stop, reverse=reverse):
                read += 1
                yield entry

    question = Question("sums", "n", None, limit=rows, arrow=True)
    found = answer_range(
        asked, Counted(backend), number, range(GROUPS), question, lambda: read_at_looks.append(read)
    )
    assert max(np.diff(read_at_looks)) <= 10_000 // GROUPS + 100
    batches = list(found.batches())
    assert max(batch.num_rows for batch in batches) < 5_000
    table = pa.Table.from_batches(batches)
    assert table["key"].to_pylist() == [key.decode() for key in keys]


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
