"""Barrier alignment: what is put aside, when the snapshot is taken, and what late or lost barriers do."""

from weir.protocol.checkpoints.alignment import BarrierAligner, Step


def test_one_input_takes_its_snapshot_at_once():
    aligner = BarrierAligner(["a"])
    assert aligner.barrier("a", 1) is Step.SNAPSHOT
    assert not aligner.blocks("a")


def test_inputs_wait_for_each_other():
    aligner = BarrierAligner(["a", "b", "c"])
    assert aligner.barrier("a", 1) is Step.BEGIN
    assert aligner.blocks("a")
    assert not aligner.blocks("b")
    assert aligner.barrier("b", 1) is Step.GO_ON
    assert aligner.barrier("c", 1) is Step.SNAPSHOT
    assert not any(map(aligner.blocks, "abc"))
    assert aligner.barrier("b", 2) is Step.BEGIN


def test_the_end_of_an_input_replaces_its_barrier():
    aligner = BarrierAligner(["a", "b"])
    assert aligner.end("x") is Step.GO_ON
    assert aligner.barrier("a", 1) is Step.BEGIN
    assert aligner.end("b") is Step.SNAPSHOT
    assert aligner.barrier("a", 2) is Step.SNAPSHOT


def test_a_newer_barrier_ends_an_older_checkpoint():
    aligner = BarrierAligner(["a", "b"])
    aligner.barrier("a", 1)
    assert aligner.barrier("b", 2) is Step.BEGIN
    assert aligner.blocks("b")
    assert not aligner.blocks("a")
    assert aligner.barrier("b", 1) is Step.GO_ON
    assert aligner.barrier("a", 2) is Step.SNAPSHOT


def test_late_barriers_of_a_given_up_checkpoint_mean_nothing():
    aligner = BarrierAligner(["a", "b"])
    aligner.barrier("a", 1)
    aligner.give_up(1)
    assert not aligner.blocks("a")
    assert aligner.barrier("b", 1) is Step.GO_ON
    assert not aligner.blocks("b")
    assert BarrierAligner(["a", "b"], ended_id=7).barrier("a", 7) is Step.GO_ON


def test_overtaken_barriers_record_until_they_come():
    aligner = BarrierAligner(["a", "b", "c"])
    assert aligner.barrier("a", 1) is Step.BEGIN
    aligner.overtake()
    assert not aligner.blocks("a")
    assert not aligner.records("a")
    assert aligner.records("b")
    assert aligner.barrier("b", 1) is Step.GO_ON
    assert not aligner.records("b")
    assert not aligner.blocks("b")
    assert aligner.end("c") is Step.RECORDED
    assert not aligner.records("c")
    assert aligner.barrier("a", 2) is Step.BEGIN


def test_a_new_input_is_waited_for():
    aligner = BarrierAligner(["a"])
    aligner.add("b")
    assert aligner.barrier("a", 1) is Step.BEGIN
    assert aligner.barrier("b", 1) is Step.SNAPSHOT
