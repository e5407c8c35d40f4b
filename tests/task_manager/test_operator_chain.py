"""Which step an error is told of, and what it says about the next attempt."""

import polars as pl
import pyarrow as pa
import pytest

import weir
from task_manager.exchange.channels import CancelledError
from task_manager.subtasks.isolation import Isolation
from weir.author.operator import Operator, OperatorContext
from weir.errors import ConnectionLostError, FailureKind, StateError, UserFunctionError
from weir.operators.chain import OperatorChain
from weir.operators.dead_letters import DeadLetterFile
from weir.operators.stateless.expressions import FilterOperator, WithColumnsOperator
from weir.operators.stateless.functions import MapBatchesOperator, MapOperator
from weir.operators.step_errors import StepError
from weir.operators.user_errors import UserErrors
from weir.rows.records import with_system_columns
from weir.specs import FilterSpec, MapBatchesSpec, MapSpec, WithColumnsSpec
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables

BATCH = pa.RecordBatch.from_pydict({"id": [1, 2, 3]})


class Passes(Operator):
    def process(self, batch):
        yield batch


class Raises(Operator):
    def __init__(self, error, *, at="process"):
        self.error, self.at = error, at

    def _raise(self, at):
        if at == self.at:
            raise self.error

    def open(self, context):
        self._raise("open")

    def process(self, batch):
        self._raise("process")
        yield batch

    def snapshot(self, checkpoint_id):
        self._raise("snapshot")

    def commit(self, checkpoint_id):
        self._raise("commit")

    def finish(self):
        self._raise("finish")
        return ()


class FakeOutput:
    """In place of channels: a chain of its own has none."""

    def __init__(self, error=None):
        self.error, self.rows = error, []

    def emit(self, batch):
        if self.error is not None:
            raise self.error
        self.rows += batch.column("id").to_pylist()


def chain_of(*operators, sink=False, output=None, isolation=None):
    """Steps are called a, b, c; the last one may be a sink."""
    names = "abc"[: len(operators)]
    contexts = [OperatorContext("job", name, 0, 0, 1, is_sink=sink and name == names[-1]) for name in names]
    pairs = list(zip(operators, contexts, strict=True))
    tables = StateTables(MemoryBackend(), 1 << 20, 128)
    return OperatorChain(pairs, output or FakeOutput(), lambda: None, tables, isolation)


def calls(chain):
    return {
        "open": chain.open,
        "process": lambda: chain.process(BATCH),
        "snapshot": lambda: chain.snapshot(1),
        "commit": lambda: chain.commit(1),
        "finish": chain.finish,
    }


@pytest.mark.parametrize("at", ["open", "process", "snapshot", "commit", "finish"])
def test_whatever_a_sink_raises_is_an_outage(at):
    chain = chain_of(Passes(), Raises(ValueError("away"), at=at), sink=True)
    with pytest.raises(StepError, match="step 'b' failed: ValueError: away") as caught:
        calls(chain)[at]()
    assert (caught.value.step, caught.value.kind) == ("b", FailureKind.OUTAGE)


class Keeps(Passes):
    def snapshot(self, checkpoint_id):
        return {"position": b"bytes"}


def test_what_is_kept_in_a_checkpoint_must_be_json():
    with pytest.raises(
        StepError, match=r"step 'b': what it keeps in a checkpoint .* is not JSON: .*bytes"
    ) as caught:
        chain_of(Passes(), Keeps(), sink=True).snapshot(1)
    assert (caught.value.step, caught.value.kind) == ("b", FailureKind.PERMANENT)


def test_a_function_that_raises_may_mean_its_rows():
    chain = chain_of(Raises(UserFunctionError("step 'a': too hot")), Passes())
    with pytest.raises(StepError, match=r"^step 'a': too hot$") as caught:
        chain.process(BATCH)
    assert (caught.value.step, caught.value.kind) == ("a", FailureKind.ROWS)


def test_a_function_that_exits_names_its_step():
    with pytest.raises(StepError, match="step 'b' failed: SystemExit: 3") as caught:
        chain_of(Passes(), Raises(SystemExit(3))).process(BATCH)
    assert caught.value.kind is FailureKind.PERMANENT


def test_our_own_errors_take_the_name_of_the_step():
    with pytest.raises(StateError) as caught:
        chain_of(Passes(), Raises(StateError("closed")), Passes()).process(BATCH)
    assert caught.value.step == "b"


@pytest.mark.parametrize("error", [ConnectionLostError("silence"), CancelledError("stop")])
def test_what_a_channel_raises_belongs_to_no_step(error):
    with pytest.raises(type(error)) as caught:
        chain_of(Passes(), Passes(), output=FakeOutput(error)).process(BATCH)
    assert caught.value.step == ""


class Picky(Operator):
    def __init__(self, error):
        self.error = error

    def process(self, batch):
        if 2 in batch.column("id").to_pylist():
            raise self.error
        yield batch


@pytest.fixture
def aside(tmp_path):
    isolation = Isolation(["a"], lambda step: DeadLetterFile(tmp_path, "job", step, 0), UserErrors())
    yield isolation
    isolation.close()


def test_rows_that_make_a_step_raise_are_put_aside(aside):
    output = FakeOutput()
    chain_of(Picky(ValueError("too hot")), output=output, isolation=aside).process(BATCH)
    assert (output.rows, aside.rejected) == ([1, 3], 1)


def test_many_rows_that_are_put_aside_leave_the_others_in_one_batch(aside):
    """Else the steps after it would get a batch for every row or two."""
    calls = []

    def function(batch):
        calls.append(batch.num_rows)
        if any(i % 2 for i in batch.column("id").to_pylist()):
            raise ValueError("odd")
        return batch

    rows = with_system_columns(pa.RecordBatch.from_pydict({"id": list(range(1000))}), 0, 0)
    step = MapBatchesOperator(MapBatchesSpec(function, pa.schema({"id": pa.int64()})))
    context = OperatorContext("job", "a", 0, 0, 1)
    step.open(context)
    for _ in range(2):
        calls.clear()
        (out,) = aside.process(step, context, rows)
        assert out.column("id").to_pylist() == list(range(0, 1000, 2))
    assert aside.rejected == 1000
    assert calls == [1] * 1000, "where every second row is bad, halves are of no use"


@pytest.mark.parametrize("error", [TimeoutError("no answer"), StateError("closed"), SystemExit(1)])
def test_what_is_not_about_rows_puts_none_aside(aside, error):
    with pytest.raises((StepError, StateError)):
        chain_of(Picky(error), isolation=aside).process(BATCH)
    assert aside.rejected == 0


def test_no_row_is_put_aside_for_a_sink(aside):
    with pytest.raises(StepError) as caught:
        chain_of(Picky(ValueError("locked")), sink=True, isolation=aside).process(BATCH)
    assert (aside.rejected, caught.value.kind) == (0, FailureKind.OUTAGE)


class Counts(Operator):
    """Remembers what it saw, in no table."""

    def __init__(self):
        self.seen = []

    def process(self, batch):
        for row in batch.column("id").to_pylist():
            if row == 2:
                raise ValueError("too hot")
            self.seen.append(row)
        yield batch


def map_step(function):
    return MapOperator(MapSpec(function, pa.schema({"id": pa.int64()})))


def test_an_operator_that_may_remember_gets_each_row_once(aside):
    counts = Counts()
    chain_of(counts, isolation=aside).process(BATCH)
    assert (counts.seen, aside.rejected) == ([1, 3], 1)


def test_after_a_checkpoint_functions_stay_isolated_and_operators_that_may_remember_do_not(aside):
    def picky(row):
        return {"id": 6 // (row["id"] - 2)}

    aside.relax()
    batch = weir.with_times(BATCH, 0, 0)
    output = FakeOutput()
    chain_of(map_step(picky), output=output, isolation=aside).process(batch)
    assert (output.rows, aside.rejected) == ([-6, 6], 1)
    with pytest.raises(StepError, match="too hot"):
        chain_of(Counts(), isolation=aside).process(batch)


def test_rows_that_a_polars_expression_cannot_take_are_put_aside(aside):
    rows = weir.with_times(pa.RecordBatch.from_pydict({"id": [1, 2, 3], "note": ["4", "x", "6"]}), 0, 0)
    output = FakeOutput()
    step = WithColumnsOperator(WithColumnsSpec((pl.col("note").cast(pl.Int64),)))
    chain_of(step, output=output, isolation=aside).process(rows)
    assert (output.rows, aside.rejected) == ([1, 3], 1)
    step = FilterOperator(FilterSpec(pl.col("note").cast(pl.Int64) > 4))
    chain_of(step, output=output, isolation=aside).process(rows)
    assert (output.rows, aside.rejected) == ([1, 3, 3], 2)


def test_a_function_that_interrupts_fails_its_step_for_good():
    def interrupts(row):
        raise KeyboardInterrupt

    with pytest.raises(StepError) as caught:
        chain_of(map_step(interrupts)).process(weir.with_times(BATCH, 0, 0))
    assert (str(caught.value), caught.value.kind) == (
        "step 'a' failed: KeyboardInterrupt",
        FailureKind.PERMANENT,
    )


def test_what_a_function_returned_is_told_in_one_line_without_a_traceback(aside, caplog):
    rows = weir.with_times(pa.RecordBatch.from_pydict({"id": list(range(64))}), 0, 0)
    chain_of(map_step(lambda row: {"id": "text"}), isolation=aside).process(rows)
    assert aside.rejected == 64
    first = next(r.getMessage() for r in caplog.records if "failed" in r.getMessage())
    assert first.startswith(
        "step 'a' failed on the row {\"id\":0}: step 'map': the function returned a value of another"
    )
    assert not any("\n" in record.getMessage() for record in caplog.records)
    assert len(caplog.records) < 8


def test_the_traceback_of_a_function_begins_in_it_and_has_no_earlier_attempts(aside, caplog):
    def fails(row):
        raise ValueError("no")

    rows = weir.with_times(pa.RecordBatch.from_pydict({"id": list(range(64))}), 0, 0)
    chain_of(map_step(fails), isolation=aside).process(rows)
    first = next(r.getMessage() for r in caplog.records if "Traceback" in r.getMessage())
    assert first.count("Traceback") == 1
    assert "in fails" in first
    assert "in _call" not in first


class Joins(Operator):
    """Stands for steps whose inputs are not alike."""

    tells_inputs_apart = True

    def process(self, batch):
        raise AssertionError("called without the input")

    def process_input(self, input_index, batch):
        if 2 in batch.column("id").to_pylist() and input_index == 1:
            raise ValueError("two")
        yield batch.set_column(
            0, "id", pa.array([10 * input_index + n for n in batch.column("id").to_pylist()])
        )


def test_a_step_that_tells_its_inputs_apart_learns_the_input():
    output = FakeOutput()
    chain = chain_of(Joins(), Passes(), output=output)
    assert (chain.tells_inputs_apart, chain_of(Passes(), Joins()).tells_inputs_apart) == (True, False)
    chain.process(BATCH)
    chain.process(BATCH, input_index=3)
    assert output.rows == [1, 2, 3, 31, 32, 33]


def test_rows_that_are_put_aside_come_from_an_input_too(aside):
    output = FakeOutput()
    chain_of(Joins(), output=output, isolation=aside).process(BATCH, input_index=1)
    assert output.rows == [11, 13]
