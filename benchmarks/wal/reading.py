"""What a reader from the beginning takes from the producers: the same case without it and with it, in turn."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable

import weir.log
from benchmarks.results import BenchmarkError
from benchmarks.wal.cases import Case
from benchmarks.wal.figures import median
from benchmarks.wal.weir_client import WeirClient

_CASE = Case("send", "random")
_PAIRS = 2


def reading(
    client: WeirClient, brokers: str, topic: str, seconds: float, report: Callable[[str, float], None]
) -> dict[str, float]:
    """Measure the producers' speed with a reader that begins at the oldest record, beside that without one.

    Raises:
        BenchmarkError: the reader has read nothing.
    """
    speeds: dict[bool, list[float]] = {False: [], True: []}
    read_mb = []
    for pair in range(_PAIRS):
        for is_read in (False, True):
            report(f"reader: producers {'with' if is_read else 'without'} one", pair / _PAIRS)
            if not is_read:
                speeds[False].append(client.measure(_CASE, seconds)["acknowledged_mb_per_second"])
                continue
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.wal.reading", brokers, topic],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert process.stdout is not None
            process.stdout.readline()
            try:
                speeds[True].append(client.measure(_CASE, seconds)["acknowledged_mb_per_second"])
            finally:
                # It ends when its input does.
                said, _ = process.communicate()
            if process.returncode or not float(said or 0):
                raise BenchmarkError(
                    f"the reader ended with exit code {process.returncode} and has read {said or 'nothing'}"
                )
            read_mb.append(float(said))
    return {
        "reader_share": round(median(speeds[True]) / median(speeds[False]), 3),
        "reader_mb_per_second": median(read_mb),
    }


def _read(brokers: str, topic: str) -> None:
    """Read from the beginning and on until the input ends; prints a line at the first records, and MiB/s at the end."""
    reader = weir.log.Reader(brokers, topic=topic, follow=True)
    total, began_s = 0, time.perf_counter()

    def end() -> None:
        sys.stdin.read()
        reader.close()

    threading.Thread(target=end, daemon=True).start()
    for batch in reader.batches():
        if not total:
            print("begun", flush=True)
        total += int(batch.lengths.sum())
    print(total / (1 << 20) / (time.perf_counter() - began_s))


if __name__ == "__main__":
    _read(*sys.argv[1:])
