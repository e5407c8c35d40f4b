import itertools
import os
import socket

import pytest

from experiments.chaos_samples import RSS_GROWTH_BYTES_MAX, Rss, Samples
from experiments.chaos_schedule import BROKER_FAULTS, DISK_FAULTS, FaultKind, schedule
from experiments.small_disk import NoSmallDiskError, SmallDisk, disk_bytes
from experiments.tcp_proxy import TcpProxy


def test_a_seed_gives_one_course_and_every_kind_comes_soon():
    faults = schedule(7, 200, 5)
    assert faults == schedule(7, 200, 5)
    assert faults != schedule(8, 200, 5)
    assert {fault.kind for fault in faults[:10]} == set(FaultKind) - BROKER_FAULTS
    assert all(before.at_s < after.at_s for before, after in itertools.pairwise(faults))
    assert 20 <= len(faults) <= 80
    assert not {fault.kind for fault in schedule(7, 200, 5, DISK_FAULTS)} & DISK_FAULTS


def test_nothing_passes_a_proxy_that_is_cut():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        TcpProxy(server.getsockname()[1]) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), 10) as near,
    ):
        far, _ = server.accept()
        with far:
            far.settimeout(10)
            near.sendall(b"one")
            assert far.recv(10) == b"one"
            proxy.cut()
            near.sendall(b"two")
            far.settimeout(0.2)
            with pytest.raises(TimeoutError):
                far.recv(10)
            far.settimeout(10)
            proxy.mend()
            assert far.recv(10) == b"two"
            far.sendall(b"three")
            assert near.recv(10) == b"three"


def test_a_proxy_ends_connections_when_nobody_listens_behind_it():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with TcpProxy(port) as proxy, socket.create_connection(("127.0.0.1", proxy.port), 10) as near:
        near.settimeout(10)
        assert near.recv(10) == b""


def test_a_full_disk_has_room_again_when_it_is_freed(tmp_path):
    try:
        disk = SmallDisk(tmp_path / "disk", 1 << 20)
    except NoSmallDiskError as error:
        pytest.skip(str(error))
    try:
        disk.fill()
        assert disk_bytes(tmp_path / "disk") == 0, "what fills it is not what the job needs"
        with pytest.raises(OSError, match="No space left"):
            (tmp_path / "disk" / "file").write_bytes(b"." * 100)
        disk.free()
        (tmp_path / "disk" / "file").write_bytes(b"." * 100)
        os.link(tmp_path / "disk" / "file", tmp_path / "disk" / "again")
        assert disk_bytes(tmp_path / "disk") == 100
    finally:
        disk.close()


def test_what_grows_is_named():
    samples = Samples()
    for second in range(100):
        samples.rss.append(Rss(second, "task manager", 1.0, 100_000_000 + second * 1_000_000))
        samples.rss.append(Rss(second, "control plane", 1.0, 100_000_000))
        samples.disk["checkpoint store"].append((second, 1000))
    samples.disk["state directories"] = [(s, s << 20) for s in range(100)]
    assert RSS_GROWTH_BYTES_MAX > 59_000_000
    assert samples.growth() == ["state directories: 41 -> 104 MB"]
    samples.rss.extend(Rss(99, "task manager", 1.0, 300_000_000) for _ in range(30))
    assert "memory of a task manager that is 0 s old: 130 -> 300 MB" in samples.growth()
