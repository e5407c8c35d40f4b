"""What a factory of the author's that is none is told of: at once, with the step and with what it must be."""

import pyarrow as pa
import pytest

import weir
from weir.errors import FailureKind, GraphError, kind_of
from weir.operators.factories import make_operator, make_reader
from weir.plan.graph import Node
from weir.specs import KeyedProcessSpec, UserOperatorSpec, UserSinkSpec

SCHEMA = pa.schema({"k": pa.string()})


class Abstract(weir.Operator):
    """Has no process."""


def no_generator(position):
    return 5


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        (UserOperatorSpec(Abstract, SCHEMA), "TypeError: Can't instantiate.*that makes a weir.Operator"),
        (UserOperatorSpec(int, SCHEMA), r"the factory of an apply step returned int, not a weir\.Operator"),
        (KeyedProcessSpec(("k",), lambda: Abstract(), SCHEMA), "TypeError.*that makes a weir.KeyedProcess"),
        (KeyedProcessSpec(("k",), int, SCHEMA), "returned int, not a weir.KeyedProcess"),
        (UserSinkSpec(Abstract), "TypeError.*that makes a weir.Sink or weir.TwoPhaseSink"),
        (UserSinkSpec(lambda: None), "gave NoneType, not a TwoPhaseSink"),
        (weir.UserSource(no_generator, schema=SCHEMA).to_spec(), "it must be a generator function read"),
    ],
)
def test_what_makes_no_operator_fails_for_good_and_names_the_step(spec, wanted):
    node = Node("st", spec, (), 1, SCHEMA)
    with pytest.raises(GraphError, match=f"^step 'st': .*{wanted}") as caught:
        make_reader(node) if node.is_source else make_operator(node)
    assert kind_of(caught.value) is FailureKind.PERMANENT


def test_what_a_factory_raises_otherwise_may_pass():
    def out_of_reach():
        raise ConnectionError("no database")

    with pytest.raises(ConnectionError):
        make_operator(Node("st", UserSinkSpec(out_of_reach), (), 1, SCHEMA))
