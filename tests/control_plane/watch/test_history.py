from control_plane.watch.history import History
from weir.protocol.job.load import JobLoad, StageLoad, SubtaskLoad


def load(rate, busy=0.5):
    return JobLoad("RUNNING", [StageLoad(3, "count", [SubtaskLoad(0, busy=busy)])], rows_per_s=rate)


def test_it_is_bounded_and_has_an_hour_by_ten_seconds_and_the_last_minutes_by_the_second():
    history = History()
    for second in range(20_000):
        history.add(second * 1_000, load(float(second)))
    found = history.document()
    times_s = [time_ms // 1_000 for time_ms in found["times_ms"]]
    assert times_s == sorted(set(times_s))
    assert len(times_s) <= 660
    assert times_s[-300:] == list(range(19_700, 20_000))
    assert 19_999 - times_s[0] >= 3_590
    assert {len(column) for column in found["columns"].values()} == {len(times_s)}
    assert found["columns"]["rows_per_s"][-1] == 19_999


def test_what_is_not_known_stays_so_and_means_leave_it_out():
    history = History()
    for second in range(400):
        history.add(second * 1_000, load(1.0))
    found = history.document()["columns"]
    assert set(found["latency_p99_ms"]) == {None}
    assert set(found["busy/3"]) == {0.5}


def test_the_latest_point_is_the_last_of_the_document():
    history = History()
    assert history.latest()["time_ms"] is None
    history.add(1_000, load(2.0))
    assert history.latest()["values"]["rows_per_s"] == 2.0
    assert history.latest()["time_ms"] == history.document()["times_ms"][-1]
