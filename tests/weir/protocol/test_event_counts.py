from weir.protocol.checkpoints.manifest import (
    Manifest,
    SubtaskPart,
    manifest_from_json,
    manifest_to_json,
    part_from_json,
    part_to_json,
)
from weir.protocol.job.event_counts import EventCounts, covered
from weir.types import SubtaskId

SOURCES, SINKS = frozenset([0]), frozenset([2])


def part(stage, subtask, events_in, events_out):
    return SubtaskPart(SubtaskId(stage, subtask), counts=EventCounts(events_in, events_out))


def test_a_checkpoint_covers_what_the_one_before_did_and_what_its_parts_counted():
    parts = [part(0, 0, 10, 9), part(0, 1, 5, 5), part(1, 0, 14, 7), part(2, 0, 6, 6)]
    settled = {1: EventCounts(100, 100), 2: EventCounts(1, 1)}
    assert covered(EventCounts(1000, 500), parts, settled, SOURCES, SINKS) == EventCounts(1015, 507)


def test_a_source_that_is_a_sink_counts_for_both():
    assert covered(EventCounts(), [part(0, 0, 3, 2)], {}, SOURCES, SOURCES) == EventCounts(3, 2)


def test_counts_are_kept_and_older_manifests_have_none():
    written = part_to_json(part(0, 0, 3, 2))
    assert part_from_json(written).counts == EventCounts(3, 2)
    del written["counts"]
    assert part_from_json(written).counts == EventCounts()
    manifest = Manifest(
        7, "job", "f", 2, 0, 0, 8, {}, {}, (), events=EventCounts(9, 8), events_before=EventCounts(4, 3)
    )
    written = manifest_to_json(manifest)
    assert manifest_from_json(written) == manifest
    del written["events"], written["events_before"]
    assert manifest_from_json(written).events == EventCounts()
