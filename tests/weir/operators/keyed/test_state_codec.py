"""State of another form is refused, with a message that says what is stored and what the job needs."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

import weir
from tests.weir.state.one_state import one_state
from weir.author.keyed_process import KeyedProcess
from weir.author.operator import OperatorContext
from weir.dataflow.keyed_steps import process_states
from weir.errors import StateError
from weir.operators.keyed.process_operator import KeyedProcessOperator
from weir.operators.keyed.running_aggregates import KeyedAggregateOperator
from weir.operators.keyed.state_codec import differing, form_text
from weir.rows.records import with_system_columns
from weir.specs import Aggregate, KeyedAggregateSpec, KeyedProcessSpec
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables

SUM = (Aggregate("n", "count"), Aggregate("total", "sum", "x"))


def batch(x, key):
    return with_system_columns(pa.record_batch({"k": key, "x": x}), 1, 2)


NUMBERS = batch(pa.array([1, 2, 3]), pa.array(["a", "b", "a"]))


def context(backend, restored=None, index=0, indices=(0,)):
    return OperatorContext(
        "job",
        "totals",
        3,
        index,
        len(indices),
        tables=one_state(backend, 1),
        restored=restored or {},
        subtask_indices=indices,
    )


def opened(backend, restored=None, aggregates=SUM, keys=("k",), index=0, indices=(0,)):
    operator = KeyedAggregateOperator(KeyedAggregateSpec(keys, aggregates))
    operator.open(context(backend, restored, index, indices))
    return operator


def cut(operator):
    operator.state.flush()
    return json.loads(json.dumps(operator.snapshot(1)))


@pytest.fixture
def written():
    backend = MemoryBackend()
    operator = opened(backend)
    list(operator.process(NUMBERS))
    return backend, {0: cut(operator)}


def test_the_same_aggregation_goes_on(written):
    backend, restored = written
    operator = opened(backend, restored, (Aggregate("count", "count"), Aggregate("sum", "sum", "x")))
    assert operator.distinct_keys == 2
    wider = batch(pa.array([10, 1], pa.int8()), pa.array(["a", "c"]))
    (out,) = operator.process(wider)
    assert out.column("sum").to_pylist() == [14, 1]
    assert operator.distinct_keys == 3


@pytest.mark.parametrize(
    ("aggregates", "keys", "needed"),
    [
        (SUM[::-1], ("k",), r"sum\(x\), count\(: int64\)|sum\(x\), count\(\)"),
        (SUM[:1], ("k",), r"count\(\) by k"),
        ((SUM[0], Aggregate("total", "sum", "y")), ("k",), r"sum\(y\)"),
        ((SUM[0], Aggregate("total", "max", "x")), ("k",), r"max\(x\)"),
        (SUM, ("k", "x"), "by k, x"),
    ],
)
def test_another_aggregation_is_refused_at_the_start(written, aggregates, keys, needed):
    backend, restored = written
    stored = r"step 'totals': the checkpoint's state is count\(\), sum\(x: int64\) by k: string"
    with pytest.raises(StateError, match=rf"{stored} .*; the job now needs .*({needed}).*; start without"):
        opened(backend, restored, aggregates, keys)


@pytest.mark.parametrize(
    "rows",
    [
        batch(pa.array([1.5]), pa.array(["a"])),
        batch(pa.array([1]), pa.array([7])),
        batch(pa.array([1]), pa.array([7], pa.timestamp("ms"))),
    ],
)
def test_another_type_is_refused_at_the_first_rows(written, rows):
    backend, restored = written
    operator = opened(backend, restored)
    with pytest.raises(StateError, match=r"the checkpoint's state is .* the job now needs"):
        list(operator.process(rows))


def test_types_survive_a_deployment_without_rows(written):
    backend, restored = written
    again = {0: cut(opened(backend, restored))}
    assert again[0]["codec"] == restored[0]["codec"]
    with pytest.raises(StateError, match="the job now needs"):
        list(opened(backend, again).process(batch(pa.array([1.5]), pa.array(["a"]))))


def test_keys_are_counted_once_over_other_subtasks(written):
    backend, restored = written
    restored = {index: restored[0] | {"distinct_keys": 10 + index} for index in (0, 1, 2)}
    counts = [opened(backend, restored, index=index, indices=(0, 3)).distinct_keys for index in (0, 3)]
    assert counts == [33, 0]
    counts = [opened(backend, restored, index=n, indices=(0, 1, 2, 3)).distinct_keys for n in range(4)]
    assert counts == [10, 11, 12, 0]


class First(KeyedProcess):
    total = weir.ValueState(int)

    def process(self, key, row, context):
        yield row


def process_operator(kind, restored=None, keys=("k",)):
    spec = KeyedProcessSpec(keys, kind, pa.schema({"k": pa.string()}), process_states("totals", kind))
    operator = KeyedProcessOperator(spec)
    tables = StateTables(MemoryBackend(), 1 << 20, 128).of("totals", {"total": 0})
    operator.open(OperatorContext("job", "totals", 3, 0, 1, tables=tables, restored=restored or {}))
    return operator


def test_a_users_states_and_key_columns_are_checked():
    written = json.loads(json.dumps(process_operator(First).snapshot(1)))
    assert written == {
        "kind": "keyed_process",
        "version": 1,
        "codec": {
            "keys": ["k"],
            "states": {"total": {"kind": "value", "type": "int64"}},
        },
    }
    process_operator(First, {0: written})
    with pytest.raises(StateError, match="state is by k, the job now keeps it by k, j"):
        process_operator(First, {0: written}, keys=("k", "j"))


def test_a_snapshot_of_the_time_of_bytes_of_ones_own_is_understood():
    """Its bytes are another state, which is not declared any more; this one begins empty."""
    older = {
        "kind": "keyed_process",
        "version": 1,
        "codec": {"name": "1", "keys": ["k"]},
        "user": {"mine": 1},
    }
    begun = process_operator(First, {0: older})
    assert begun.snapshot(1) == process_operator(First).snapshot(1)


def test_state_of_another_kind_of_step_is_refused(written):
    _, restored = written
    with pytest.raises(
        StateError, match=r"holds the state of .'keyed_aggregate', 1., this is keyed_process of version 1"
    ):
        process_operator(First, restored)


def test_messages_have_the_parts_in_which_two_forms_differ():
    stored = {"keys": ["k"], "order": ["num", False, 2], "columns": [["k", "string"], ["at", "int64"]]}
    needed = {"keys": ["k"], "order": ["num", False, 2], "columns": [["k", "string"]], "more": None}
    assert differing(stored, needed) == ("columns: k string, at int64", "columns: k string")
    assert (
        form_text([[["at", "int64"], ["x", "double"]], [["at", "int64"]]])
        == "(at int64, x double) and (at int64)"
    )
    assert form_text({"window": {"size_ms": 5, "late_ms": None}, "rows": None}) == "window: size_ms: 5"
    assert (form_text(None), form_text({}), form_text(20)) == ("none", "none", "20")
