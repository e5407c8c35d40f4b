"""Ranges over keys: their order, pages, counts and Arrow."""

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.weir.operators.queries.asked_states import (
    GROUPS,
    WATERMARK_MS,
    Everything,
    InRounds,
    Reading,
    build,
    page,
    table_of,
)
from tests.weir.state.retained_steps import Step
from weir.author.states import declared_states
from weir.keys import hashing as weir_keys
from weir.operators.aggregation.fold_classes import cell_count
from weir.operators.queries.answering import answer_range, asked_state
from weir.operators.queries.merging import merged_runs
from weir.protocol.queries import QueryError, Question
from weir.questions.json_values import plain
from weir.state import layout
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.cells.accumulators import encode_values


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


@pytest.mark.parametrize("seed", range(60))
def test_blocks_of_random_runs_are_those_of_plain_python(seed):
    """A run says what a key has when it goes on after it; blocks have whole keys, and few runs are read on for them."""
    random = np.random.default_rng(seed)
    count, reverse = int(random.integers(1, 40)), bool(random.integers(2))
    rows = int(random.choice([1, 2, 7, 50, 20_000]))
    of_runs = []
    for number in range(count):
        size = int(random.choice([0, 1, 3, 60, 400]))
        keys = sorted({b"%04d" % at for at in random.integers(3_000, size=size)}, reverse=reverse)
        of_runs.append([(key, (number, key)) for key in keys])
    read = 0

    def run(entries):
        nonlocal read
        for key, told in entries:
            read += 1
            found = []
            yield b"cut" + key, found
            found.append(told)

    blocks = merged_runs([run(each) for each in of_runs], rows, lambda: None, reverse=reverse, cut_bytes=3)
    expected = sorted((key, told[0]) for entries in of_runs for key, told in entries)
    keys = sorted({key for key, _ in expected}, reverse=reverse)
    told = []
    for block in blocks:
        assert all(found == [(found[0][0], key)] for key, found in block)
        assert not told or block[0][0] != told[-1][0], "a key is in one block"
        if not told and rows <= 7 and len(keys) > 100 * rows:
            assert len({key for key, _ in block}) == rows
            # The first key of each run, and of those that have the first ones some more.
            assert read <= count + 8 * len(block)
        told += [(key, found[0][0]) for key, found in block]
    assert [key for key, _ in told] == sorted((key for key, _ in told), reverse=reverse)
    assert sorted(told) == expected


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


def ranges_of(dtype, *keys):
    """What ranges over keys of a type are; each key has itself as its value."""
    flow = weir.Dataflow("typed", max_parallelism=GROUPS)
    column = {"k": weir.Nullable(dtype), "v": int}
    keyed = flow.source("rows", weir.JsonLines("none", schema=column)).key_by("k")
    keyed.count("seen").sink("out", weir.Blackhole())
    graph, backend = flow.build(), MemoryBackend()
    asked = asked_state(graph, Question("seen", "seen"))
    rows = pa.RecordBatch.from_arrays([pa.array(keys, asked.keys._columns[0].type)], names=["k"])
    for number, key in enumerate(weir_keys.key_bytes(rows, ["k"]).to_list()):
        cells = [bytes(encode_values(np.array([[number + 1]], np.int64), np.ones((1, 1), np.uint8)))]
        backend.put_many([layout.key_prefix(asked.group_of(key), 1) + key], cells)

    def found(**given):
        question = Question("seen", "seen", None, "checkpoint", **given)
        pages = answer_range(asked, Reading(backend), 1, range(GROUPS), question, lambda: None)
        if question.counts:
            return pages.count
        return [row["key"] for row in pages.rows]

    return found


def test_null_is_in_no_range():
    """Its byte lies before those of the largest integers, and after those of all texts."""
    integers = ranges_of(pl.Int64, 5, None, 2**63 - 1, -(2**63))
    assert integers() == [-(2**63), 5, None, 2**63 - 1]
    assert integers(first="5") == integers(first="5", last=str(2**63 - 1)) == [5, 2**63 - 1]
    assert integers(last=str(2**63 - 1), reverse=True) == [2**63 - 1, 5, -(2**63)]
    assert integers(first="5", limit=1) == [5]
    assert (integers(counts=True), integers(counts=True, first="5")) == (4, 2)
    texts = ranges_of(pl.String, "a", None, "\U0010ffff")
    assert texts() == ["a", "\U0010ffff", None]
    assert texts(first="a") == texts(first="", reverse=True)[::-1] == texts(prefix="") == ["a", "\U0010ffff"]
    # Of bytes it is a key as any other.
    assert ranges_of(pl.Binary, b"a", b"\xff")(first="a") == ["YQ==", "/w=="]


def test_ranges_of_unsigned_integers_are_within_a_half_of_them():
    found = ranges_of(pl.UInt64, 0, 7, 2**63 - 1, 2**63, 2**64 - 1, None)
    assert sorted(found(), key=str) == sorted([0, 7, 2**63 - 1, 2**63, 2**64 - 1, None], key=str)
    assert found(last=str(2**63 - 1)) == found(first="0", last=str(2**63 - 1)) == [0, 7, 2**63 - 1]
    assert found(first=str(2**63)) == found(first=str(2**63), last=str(2**64 - 1)) == [2**63, 2**64 - 1]
    assert found(first="1", last="7") == [7]
    for given in ({"first": "7"}, {"last": str(2**63)}, {"first": "0", "last": str(2**64 - 1)}):
        with pytest.raises(QueryError, match="ask for a range up to 9223372036854775807, or from 9223372036"):
            found(**given)
    # Those of 32 bits have no such halves.
    assert ranges_of(pl.UInt32, 2**32 - 1, 0)(first="0") == [0, 2**32 - 1]


class ReadingInRounds(InRounds, Reading):
    pass


@pytest.mark.parametrize("state", ["number", "text", "items", "names", "prices", "windows", "visits"])
def test_states_of_all_groups_are_read_together(graph, written, state):
    backend, numbers = written
    reading = ReadingInRounds(backend, WATERMARK_MS)
    question = Question("all", state, first="a", last="c")
    asked = asked_state(graph, question)
    page = answer_range(asked, reading, numbers[state], range(GROUPS), question, lambda: None)
    assert [row["key"] for row in page.rows] == ["ann", "bea", "bob"]
    # Clocks of what is retained are read by the group here, together of checkpoints.
    clocks = GROUPS if state in ("prices", "windows", "visits") else 0
    assert reading.rounds - clocks <= 1
