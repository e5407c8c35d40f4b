"""A disk that is almost full holds the job back until it has room again, and says so once."""

from weir.protocol.job.disk_watch import DiskWatch

MIB = 1 << 20
DISK = 100_000 * MIB


def test_a_disk_is_warned_of_then_holds_the_job_back_and_lets_go_with_half_as_much_again():
    watch = DiskWatch(100 * MIB)
    told = []
    for free in (500, 199, 150, 99, 80, 100, 149, 150, 149, 99, 300, 199):
        note = watch.take("a:1", free * MIB, DISK)
        told.append((free, note is not None and note.is_bad, bool(watch.reason)))
    assert [free for free, is_bad, _ in told if is_bad] == [199, 99, 99, 199]
    assert [free for free, _, is_held in told if is_held] == [99, 80, 100, 149, 99]


def test_what_is_told_names_the_disk_its_room_and_the_mend():
    watch = DiskWatch(100 * MIB)
    note = watch.take("a:1", 90 * MIB, DISK)
    assert note.message.startswith(
        "the disk of a:1 has 90 MiB free, less than 100 MiB; free some, or drain it"
    )
    watch.take("b:2", 80 * MIB, DISK)
    assert watch.reason.count("; free some") == 2
    assert watch.held_by("b:2") in watch.reason
    assert watch.held_by("c:3") == ""
    assert (
        watch.take("a:1", 900 * MIB, DISK).message
        == "the disk of a:1 has 900 MiB free again: sources read on"
    )
    watch.forget("b:2")
    assert watch.reason == ""


def test_a_small_disk_has_a_small_bound_and_without_a_bound_or_a_disk_nothing_is_held():
    watch = DiskWatch(100 * MIB)
    assert watch.take("a:1", 21 * MIB, 100 * MIB) is None
    assert watch.take("a:1", 11 * MIB, 100 * MIB) is not None
    assert watch.reason == ""
    watch.take("a:1", 9 * MIB, 100 * MIB)
    assert "less than 10 MiB" in watch.reason
    assert DiskWatch(0).take("a:1", 0, DISK) is None
    assert watch.take("b:2", 0, 0) is None
