"""A broker with gigabytes of segments that was killed: how long until it serves again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import weir.log
from benchmarks.results import BenchmarkError
from experiments.log_cluster import LogCluster
from weir.errors import ConfigError

TOPIC = "large"
_RECORD_BYTES = 64 << 10
_PART = 64


def recovery(directory: Path, size_bytes: float, report: Callable[[str, float], None]) -> dict[str, float]:
    """Fill one broker, kill it, start it, and return how long until it has answered a producer and a reader.

    Args:
        directory: on a disk with room for ``size_bytes``.
        size_bytes: of the segments.
        report: called with what is being done.

    Raises:
        ConfigError: there is no room.
        BenchmarkError: what is read is not what was written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(directory).free) < size_bytes * 1.1:
        raise ConfigError(
            f"{directory} has {free / 1e9:.1f} GB free, {size_bytes * 1.1 / 1e9:.1f} are needed"
        )
    with LogCluster(directory, brokers=1) as cluster:
        weir.log.create_topic(cluster.addresses, TOPIC, replication=1)
        count = _fill(cluster.addresses, size_bytes, report)
        report("recovery: kill -9 and start", 1.0)
        cluster.kill(1)
        began_s = time.perf_counter()
        cluster.start(1)
        with weir.log.Producer(cluster.addresses, topic=TOPIC) as producer:
            offset = producer.send(count, b"served").result()
        served_s = time.perf_counter() - began_s
        records = iter(weir.log.Reader(cluster.addresses, topic=TOPIC, start=offset))
        if next(records).id != count:
            raise BenchmarkError("the first record after the recovery is not the one that was written")
        first = next(iter(weir.log.Reader(cluster.addresses, topic=TOPIC)))
        if first.id != 0:
            raise BenchmarkError(f"the oldest record is {first.id} after the recovery")
    return {"recovery_s": round(served_s, 3), "recovered_bytes": count * _RECORD_BYTES}


def _fill(brokers: str, size_bytes: float, report: Callable[[str, float], None]) -> int:
    count = int(size_bytes) // _RECORD_BYTES
    # Other bytes at each place, so that nothing of it is stored once for many.
    record = bytearray(range(256)) * (_RECORD_BYTES // 256)
    with weir.log.Producer(brokers, topic=TOPIC, batch_bytes=4 << 20) as producer:
        for first in range(0, count, _PART):
            numbers = range(first, min(first + _PART, count))
            record[:8] = first.to_bytes(8, "little")
            producer.send_many(numbers, [bytes(record)] * len(numbers))
            report("recovery: filling segments", first / count)
    return count
