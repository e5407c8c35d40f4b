"""What the traces of checkpoints and rescales say, from what is recorded of them."""

import pytest

from tests.weir.protocol.checkpoints.bench import COUNT, SOURCE, Bench
from weir.protocol.checkpoints.checkpoint_model import Committed, Tick
from weir.protocol.rescale.rescale_log import RescaleLog
from weir.protocol.rescale.rescale_plan import RescalePlan
from weir.protocol.spans import Span, checkpoint_span, rescale_span
from weir.subtask_names import numbered

EPOCH_MS = 1_700_000_000_000


def report(*phases, cause=""):
    """Of a rescale that went through these phases, 100 ms each."""
    return {
        "id": 3,
        "stage": 1,
        "from": 2,
        "to": 3,
        "phase": phases[-1],
        "cause": cause,
        "groups_total": 42,
        "groups_owned": 42,
        "groups_migrated": 42,
        "bytes_moved": 5_000,
        "groups_relinked": 0,
        "bytes_sent": 4_000,
        "phases": {phase: EPOCH_MS + 100 * place for place, phase in enumerate(phases)},
    }


def drawn(span):
    """Name, begin and end of a span and of those within it, in ms since the epoch."""
    return (span.name, span.start_ms - EPOCH_MS, span.end_ms - EPOCH_MS, [drawn(it) for it in span.children])


def test_a_checkpoint_has_the_way_to_each_part_and_the_commit():
    bench = Bench()
    bench.tell(Tick(), at=1_000)
    bench.deliver(7, COUNT, at=1_100)
    bench.deliver(7, SOURCE, at=1_400)
    bench.tell(Committed(7, 500), at=1_450)
    span = checkpoint_span(bench.machine.records[0], EPOCH_MS, numbered)
    assert drawn(span) == (
        "checkpoint",
        1_000,
        1_450,
        [
            ("checkpoint.part", 1_000, 1_400, []),
            ("checkpoint.part", 1_000, 1_100, []),
            ("checkpoint.commit", 1_400, 1_450, []),
        ],
    )
    assert (span.cause, span.attributes["weir.checkpoint.slowest"]) == ("", "subtask 0/0")
    assert span.attributes["weir.checkpoint.new_bytes"] == 20
    assert span.children[1].attributes == {
        "weir.stage": 1,
        "weir.subtask_index": 0,
        "weir.subtask": "subtask 1/0",
    }


def test_a_savepoint_that_waited_and_failed_says_so():
    bench = Bench()
    bench.tell(Tick(), at=1_000)
    record, _ = bench.request("/save/here")
    bench.deliver(7, COUNT, SOURCE, at=1_300)
    bench.tell(Committed(7), at=1_400)
    bench.deliver(8, COUNT, at=1_500)
    bench.tell(Tick(), at=9_000)
    span = checkpoint_span(record, EPOCH_MS, numbered)
    assert drawn(span) == (
        "checkpoint",
        1_000,
        9_000,
        [("checkpoint.wait", 1_000, 1_400, []), ("checkpoint.part", 1_400, 1_500, [])],
    )
    assert span.attributes["weir.checkpoint.kind"] == "savepoint"
    assert "no part of subtask 0/0" in span.cause


def test_a_checkpoint_that_never_began_has_no_parts():
    bench = Bench(run=False)
    record, _ = bench.request()
    assert drawn(checkpoint_span(record, EPOCH_MS, numbered)) == ("checkpoint", 0, 0, [])


def test_a_rescale_prepares_switches_and_moves():
    phases = ("PLANNING", "DEPLOYING", "PREPARING", "REROUTING", "HANDING_OVER", "MIGRATING", "COMPLETE")
    span = rescale_span(report(*phases))
    assert [drawn(child)[:3] for child in span.children] == [
        ("rescale.preparation", 0, 300),
        ("rescale.switch", 300, 500),
        ("rescale.move", 500, 600),
    ]
    assert [len(child.children) for child in span.children] == [3, 2, 0]
    assert drawn(span.children[0].children[1]) == ("rescale.phase.deploying", 100, 200, [])
    assert (drawn(span)[1:3], span.cause) == ((0, 600), "")
    assert span.attributes["weir.rescale.bytes_moved"] == 5_000


def test_a_rescale_that_was_taken_back_is_an_error():
    span = rescale_span(report("PLANNING", "DEPLOYING", "ABORTING", "ABORTED", cause="no room"))
    assert [child.name for child in span.children] == ["rescale.preparation", "rescale.undoing"]
    assert (span.cause, span.attributes["weir.rescale.phase"]) == ("no room", "ABORTED")


def test_a_source_moves_by_a_checkpoint_and_a_deployment():
    log = RescaleLog()
    rescale = log.add_of_source(RescalePlan(0, 1, (0,), (0, 1, 2), {}, ()), EPOCH_MS)
    rescale.start(EPOCH_MS + 1)
    assert rescale_span(log.report(1)) is None
    rescale.checkpoint_made(EPOCH_MS + 100)
    rescale.job_runs(EPOCH_MS + 900)
    assert [drawn(child)[:3] for child in rescale_span(log.report(1)).children] == [
        ("rescale.preparation", 0, 1),
        ("rescale.checkpoint", 1, 100),
        ("rescale.redeployment", 100, 900),
    ]


def test_of_a_rescale_that_another_process_led_the_end_is_not_known():
    log = RescaleLog([report("PLANNING", "DEPLOYING")])
    assert log.report(3)["phase"] == "FAILED"
    assert rescale_span(log.report(3)) is None


@pytest.mark.parametrize("phases", [("PLANNING",), ("PLANNING", "DEPLOYING", "PREPARING")])
def test_a_rescale_that_goes_on_has_no_span_yet(phases):
    assert rescale_span(report(*phases)) is None


def test_a_span_has_no_cause_and_nothing_within_it_unless_it_is_told():
    assert (Span("x", 1, 2).cause, Span("x", 1, 2).children) == ("", ())
