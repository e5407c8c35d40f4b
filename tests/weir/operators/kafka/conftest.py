"""What tests against a real broker need."""

import uuid

import pytest

from tests.kafka_topics import make_topics


@pytest.fixture
def topic(kafka_bootstrap):
    name = f"topic-{uuid.uuid4().hex[:8]}"
    make_topics(kafka_bootstrap, name, partitions=2)
    return name
