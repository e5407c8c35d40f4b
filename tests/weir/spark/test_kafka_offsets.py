"""Which offsets a trigger of a stream reads, from what brokers say."""

import random

import pytest

import weir
from weir.errors import InputError
from weir.spark.kafka_offsets import Range, advanced, noted, ranges


def spec(**settings):
    flow = weir.Dataflow("job")
    topic = weir.Kafka(bootstrap="localhost:9092", topics="t", schema={"k": int, "at": int}, **settings)
    flow.source("rows", topic, event_time="at")
    return flow.build_local().nodes[0].spec


def test_each_offset_is_read_once_whatever_turns_up_and_whichever_trigger_is_run_again():
    for seed in range(200):
        draw = random.Random(seed)
        starts, ends = {}, {}
        told, read = [{}], []
        for _ in range(draw.randrange(1, 8)):
            for _ in range(draw.randrange(3)):
                partition = (draw.choice("ab"), draw.randrange(3))
                ends.setdefault(partition, 0)
                starts.setdefault(partition, draw.randrange(3) if len(told) == 1 else 0)
            for partition in ends:
                ends[partition] = max(ends[partition], starts[partition]) + draw.randrange(3)
            now = {partition: (starts[partition], end) for partition, end in ends.items()}
            after = advanced(told[-1], now)
            if after == told[-1]:
                continue
            found = ranges("rows", spec(), told[-1], after)
            # Whatever brokers would say now, a trigger that is run again gets what is noted.
            assert ranges("rows", spec(), told[-1], after) == found
            told.append(after)
            read += [
                (each.topic, each.number, offset) for each in found for offset in range(each.first, each.stop)
            ]
        wanted = [
            (*partition, offset)
            for partition, end in ends.items()
            for offset in range(starts[partition], end)
        ]
        assert sorted(read) == sorted(wanted), seed


def test_nothing_new_is_the_same_offsets_and_the_earliest_record_needs_no_number():
    before = advanced({}, {("t", 0): (-2, 7), ("t", 1): (-2, 0)})
    assert ranges("rows", spec(), {}, before) == [Range("t", 0, -2, 7)]
    assert advanced(before, {("t", 0): (0, 7), ("t", 1): (0, 0)}) == before
    # As Spark's own connector notes it.
    assert ranges("rows", spec(), noted({"t": {"0": 5}}), before) == [Range("t", 0, 5, 7)]
    # A topic that is gone for now keeps its place.
    assert advanced(before, {}) == before


def test_a_partition_that_is_shorter_than_before_fails_or_begins_as_the_source_says():
    before, after = {"t": {"0": [0, 9]}}, {"t": {"0": [0, 4]}}
    with pytest.raises(InputError, match=r"source rows: t\[0\] ends at offset 4, and was read to 9"):
        ranges("rows", spec(), before, after)
    assert ranges("rows", spec(on_truncation="earliest"), before, after) == [Range("t", 0, -2, 4)]
    assert ranges("rows", spec(on_truncation="latest"), before, after) == []
