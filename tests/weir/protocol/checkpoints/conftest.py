"""A machine before its first checkpoint, in one, and while it is committed."""

import pytest

from tests.weir.protocol.checkpoints.bench import COUNT, SOURCE, Bench
from weir.protocol.checkpoints.checkpoint_model import Tick, Trigger


@pytest.fixture
def bench():
    return Bench()


@pytest.fixture
def in_flight(bench):
    assert bench.tell(Tick(), at=1000) == [Trigger(7, (SOURCE,))]
    return bench


@pytest.fixture
def committing(in_flight):
    in_flight.deliver(7, SOURCE, COUNT)
    return in_flight
