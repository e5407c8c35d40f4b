"""What clients of ``benchmarks wal`` share: what was acknowledged, and which figures are told of it."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

from benchmarks.results import BenchmarkError
from benchmarks.wal.cases import Case

WARM_UP_S = 0.5
TIMEOUT_S = 60.0
_RESET_PEAK = "5"


class Client(Protocol):
    """One of the systems."""

    system: str

    def measure(self, case: Case, seconds: float) -> dict[str, float]:
        """Run one case, after a warm-up; returns figures by name.

        Raises:
            BenchmarkError: a record was not acknowledged.
        """

    def broker_pids(self) -> Sequence[int]:
        """Return the processes of the brokers."""


@dataclass
class Done:
    """What was acknowledged."""

    count: int = 0
    size_bytes: int = 0
    latencies_s: list[float] = field(default_factory=list)

    def add(self, count: int, size_bytes: int, latency_s: float) -> None:
        """Count what was acknowledged together."""
        self.count += count
        self.size_bytes += size_bytes
        self.latencies_s.append(latency_s)


def figures(count: int, size_bytes: int, latencies_s: Sequence[float], took_s: float) -> dict[str, float]:
    """Return what is told of one run of a case; MB are of 2**20 bytes, as in the figures of the predecessor.

    Raises:
        BenchmarkError: nothing was acknowledged.
    """
    if not latencies_s:
        raise BenchmarkError(f"nothing was acknowledged within {took_s:.1f} s; give it more --seconds")
    ordered = sorted(latencies_s)
    return {
        "acknowledged_mb_per_second": round(size_bytes / took_s / (1 << 20), 2),
        "records_per_second": round(count / took_s),
        **{f"p{part}_ms": round(ordered[len(ordered) * part // 100] * 1000, 3) for part in (50, 99)},
    }


class Usage:
    """Processors and memory that the brokers and this process take between the beginning and :meth:`figures`."""

    def __init__(self, broker_pids: Sequence[int]) -> None:
        self._brokers = [psutil.Process(pid) for pid in broker_pids]
        for pid in broker_pids:
            try:
                Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)
            except OSError:
                # Then the peak is that of the process's whole life.
                continue
        self._before = self._cpu_s()
        self._began_s = os.times().elapsed

    def _cpu_s(self) -> tuple[float, float]:
        own = os.times()
        brokers = [each.cpu_times() for each in self._brokers]
        return sum(each.user + each.system for each in brokers), own.user + own.system

    def figures(self) -> dict[str, float]:
        """Return processors that were busy on average, and the largest broker's memory at its peak."""
        took_s = max(os.times().elapsed - self._began_s, 1e-3)
        brokers, own = (after - before for after, before in zip(self._cpu_s(), self._before, strict=True))
        peaks = [_peak_bytes(each.pid) for each in self._brokers]
        return {
            "broker_processors": round(brokers / took_s, 3),
            "client_processors": round(own / took_s, 3),
            "peak_broker_bytes": max(peaks, default=0),
        }


def _peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


def median(values: Sequence[float]) -> float:
    """Return the middle one."""
    return round(statistics.median(values), 3)
