"""What a task manager tells of its machine."""

from task_manager.link.machine_use import machine_use
from weir.clock import SystemClock


def test_the_disk_of_state_that_is_not_made_yet_and_none_of_state_in_memory(tmp_path):
    use = machine_use(tmp_path / "later" / "data.db", SystemClock())()
    assert use.resident_bytes > 0
    assert 0 < use.disk_free_bytes <= use.disk_bytes
    use = machine_use(None, SystemClock())()
    assert use.resident_bytes > 0
    assert (use.disk_free_bytes, use.disk_bytes) == (0, 0)
