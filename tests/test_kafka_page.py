"""The page about Kafka and the example of it, against a real broker."""

import json
import re
from pathlib import Path

import pytest
from confluent_kafka import Producer

import weir
from tests.kafka_topics import make_topics, read_committed
from weir.examples import word_count

pytestmark = [pytest.mark.scenario, pytest.mark.service]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "kafka.md"


def test_the_job_of_the_page_runs(kafka_bootstrap):
    make_topics(kafka_bootstrap, "clicks", "slow-pages")
    producer = Producer({"bootstrap.servers": kafka_bootstrap})
    for ms in (10, 2_000, 3_000):
        producer.produce("clicks", json.dumps({"page": "a", "ms": ms}))
    assert producer.flush(30) == 0
    text = PAGE.read_text().replace("localhost:9092", kafka_bootstrap)
    text = text.replace('topics="clicks",', 'topics="clicks", bounded=True,')
    names = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, names)
    weir.run(names["flow"])
    found = read_committed(kafka_bootstrap, "slow-pages", lambda count: count >= 2)
    counts = [json.loads(value)["count"] for values in found.values() for value in values]
    assert counts == [1, 2]


def test_words_are_counted_from_topic_to_topic(kafka_bootstrap, monkeypatch):
    make_topics(kafka_bootstrap, "texts", "word-counts")
    producer = Producer({"bootstrap.servers": kafka_bootstrap})
    for line in ("Belgium, Finland", "belgium! France", "finland belgium"):
        producer.produce("texts", line)
    assert producer.flush(30) == 0
    # The job never ends: this one ends where the topic does.
    kafka = weir.Kafka
    monkeypatch.setattr(weir, "Kafka", lambda **settings: kafka(**settings, bounded=True))
    weir.run(word_count.build(bootstrap=kafka_bootstrap, topic="texts", target="word-counts"))
    found = read_committed(kafka_bootstrap, "word-counts", lambda count: count >= 6)
    latest = {row["word"]: row["count"] for values in found.values() for row in map(json.loads, values)}
    assert latest == {"belgium": 3, "finland": 2, "france": 1}
