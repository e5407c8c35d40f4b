"""What tests against a real broker need."""

import gc
import uuid

import pytest

from tests.kafka_topics import make_topics


@pytest.fixture(autouse=True)
def _no_clients_are_left(request):
    """Sinks whose process "dies" leave their clients, each with four threads that wake all the time."""
    yield
    if request.node.get_closest_marker("service"):
        gc.collect()


@pytest.fixture
def topic(kafka_bootstrap):
    name = f"topic-{uuid.uuid4().hex[:8]}"
    make_topics(kafka_bootstrap, name, partitions=2)
    return name
