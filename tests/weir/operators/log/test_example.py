"""The example counts words from topic to topic."""

import json
from collections import Counter

import pytest

import weir
import weir.log
from weir.examples import log_words

pytestmark = pytest.mark.scenario


def test_words_are_counted_from_topic_to_topic(brokers, topic):
    target = f"{topic}-counts"
    weir.log.create_topic(brokers.addresses, target, partitions=3)
    words = ["weir", "log", "weir", "job", "log", "weir"] * 100
    for partition in (0, 1):
        lines = [json.dumps({"word": word, "at": 1000}).encode() for word in words[partition::2]]
        with weir.log.Producer(brokers.addresses, topic=topic, partition=partition) as producer:
            producer.send_many(range(len(lines)), lines)
    weir.run(log_words.build(brokers.addresses, topic, target, bounded=True))
    found, latest = 0, Counter()
    for partition in range(3):
        for record in weir.log.Reader(brokers.addresses, topic=target, partition=partition):
            row = json.loads(record.data)
            assert row["count"] == latest[row["word"]] + 1
            assert record.id == 1000
            latest[row["word"]] = row["count"]
            found += 1
    assert found == len(words)
    assert latest == Counter(words)
