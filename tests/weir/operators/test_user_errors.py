"""What the job author's code raises is found in the log: once whole, with step and row."""

import logging

import pyarrow as pa
import pytest

from weir.author.operator import OperatorContext
from weir.errors import InputError, UserFunctionError
from weir.operators import user_errors
from weir.operators.stateless.functions import FlatMapOperator, MapBatchesOperator, MapOperator
from weir.operators.step_errors import StepError, as_kept
from weir.operators.user_errors import KINDS_MAX, UserErrors
from weir.rows.records import with_system_columns
from weir.specs import FlatMapSpec, MapBatchesSpec, MapSpec

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])


def batch(*numbers):
    return with_system_columns(pa.RecordBatch.from_pydict({"n": list(numbers)}, schema=SCHEMA), 1, 2)


def inverse(row):
    row["m"] = 5
    return {"n": 1 // row["n"]}


def inverses(row):
    yield inverse(row)


def nothing(row):
    return None


def inverse_of_all(rows):
    raise ValueError("no batch is right")


def error_of(operator, rows):
    operator.open(OperatorContext("job", "change", 1, 0, 1))
    with pytest.raises(UserFunctionError) as caught:
        list(operator.process(rows))
    return caught.value


@pytest.fixture
def told(caplog):
    caplog.set_level(logging.ERROR, logger=user_errors.__name__)
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("make", "spec", "function"),
    [(MapOperator, MapSpec, inverse), (FlatMapOperator, FlatMapSpec, inverses)],
    ids=["map", "flat_map"],
)
def test_the_first_of_a_kind_is_whole_with_its_row(told, make, spec, function):
    errors, rows = UserErrors(), batch(1, 0, 2)
    error = error_of(make(spec(function, SCHEMA)), rows)
    for _ in range(30):
        errors.tell("change", error, rows)
    first, tenth = told()
    assert "step 'change' failed on the row {\"n\":0}:\nTraceback" in first, "the row as it was"
    assert "ZeroDivisionError" in first
    assert "in inverse" in first
    assert "ZeroDivisionError at " in tenth
    assert tenth.endswith("for the 10th time")


def test_what_a_function_returns_needs_no_traceback(told):
    rows = batch(7, 8)
    UserErrors().tell("change", error_of(MapOperator(MapSpec(nothing, SCHEMA)), rows), rows)
    [first] = told()
    assert first.startswith("step 'change' failed on the row {\"n\":7}:")
    assert "the function returned NoneType" in first
    assert "Traceback" not in first


def test_a_function_of_batches_has_their_rows_counted_until_the_row_is_known(told):
    errors = UserErrors()
    operator = MapBatchesOperator(MapBatchesSpec(inverse_of_all, SCHEMA))
    for rows in (batch(*range(1234)), batch(3), batch(4)):
        errors.tell("change", error_of(operator, rows), rows)
    first, second = told()
    assert "failed in a batch of 1,234 rows:\nTraceback" in first
    assert 'on the row {"n":3}:' in second


def test_errors_of_weir_are_no_business_of_a_user(told):
    errors = UserErrors()
    try:
        int("not ours")
    except ValueError as error:
        errors.tell("change", error)
    assert len(told()) == 1, "this module is a user's"
    errors.tell("out", InputError("no frame of a user"))
    assert len(told()) == 1


def test_kinds_and_rows_are_bounded(told):
    errors = UserErrors()
    rows = batch(0)
    error = error_of(MapOperator(MapSpec(inverse, SCHEMA)), rows)
    for number in range(KINDS_MAX + 50):
        errors.tell(f"step {number}", error, rows)
    assert len(told()) == KINDS_MAX
    errors.begin("another job")
    long = with_system_columns(pa.record_batch({"text": ["x" * 10_000]}), 1, 2)
    errors.tell("change", error_of(MapOperator(MapSpec(nothing, SCHEMA)), long), long)
    assert len(told()[-1]) < 3_000


def test_what_a_step_tells_a_checkpoint_is_kept_as_it_was_then():
    told = {"seen": [1]}
    kept = as_kept(told, "step")
    told["seen"].append(2)
    assert kept == {"seen": [1]}
    with pytest.raises(StepError, match=r"step 'step': what it keeps in a checkpoint .* not JSON"):
        as_kept({"seen": {1}}, "step")
