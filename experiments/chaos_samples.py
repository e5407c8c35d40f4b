"""Memory of processes by their age, and bytes on disk, over a run; whether they stay flat."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from experiments.cluster import Cluster
from experiments.small_disk import disk_bytes

#: Ages of processes, s, that are compared with one another: from one to the next.
_AGES_S = (0.0, 5.0, 15.0, 45.0, 120.0, 600.0)
#: What grows by less is flat: caches fill, and checkpoints are deleted in steps.
RSS_GROWTH_BYTES_MAX = 64 << 20
DISK_GROWTH_BYTES_MAX = 32 << 20
_SAMPLES_MIN = 5
_MB = 1e6


@dataclass(frozen=True)
class Rss:
    """Memory of one process at one moment."""

    at_s: float
    kind: str
    age_s: float
    rss_bytes: int


@dataclass
class Samples:
    """Filled by :meth:`take`."""

    began_s: float = field(default_factory=time.monotonic)
    rss: list[Rss] = field(default_factory=list)
    #: By what is stored: second and bytes.
    disk: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))

    def take(self, cluster: Cluster, directories: dict[str, Path]) -> None:
        """Note what all processes and directories have now."""
        now_s = time.monotonic()
        for name, process in cluster.processes.items():
            if process.alive() and process.rss_bytes:
                kind = "control plane" if name == "control_plane" else "task manager"
                self.rss.append(Rss(now_s - self.began_s, kind, now_s - process.started_s, process.rss_bytes))
        for name, directory in directories.items():
            self.disk[name].append((now_s - self.began_s, disk_bytes(directory)))

    def rss_by_age(self, from_s: float = 0.0, until_s: float = float("inf")) -> dict[str, dict[str, float]]:
        """Median bytes by kind of process and age, of samples from a part of the run."""
        found: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for item in self.rss:
            if from_s <= item.at_s < until_s:
                age_s = max(age for age in _AGES_S if age <= item.age_s)
                found[item.kind][f"{age_s:g} s"].append(item.rss_bytes)
        return {
            kind: {
                age: statistics.median(values)
                for age, values in sorted(ages.items(), key=lambda pair: float(pair[0].split()[0]))
                if len(values) >= _SAMPLES_MIN
            }
            for kind, ages in found.items()
        }

    def growth(self) -> list[str]:
        """What grew too much from the second fifth of the run to the last one; empty: everything is flat."""
        if not self.rss:
            return []
        end_s = self.rss[-1].at_s
        early = self.rss_by_age(end_s * 0.2, end_s * 0.4)
        late = self.rss_by_age(end_s * 0.8)
        grown = [
            f"memory of a {kind} that is {age} old: {before / _MB:.0f} -> {late[kind][age] / _MB:.0f} MB"
            for kind, ages in early.items()
            for age, before in ages.items()
            if late.get(kind, {}).get(age, 0.0) - before > RSS_GROWTH_BYTES_MAX
        ]
        for name, values in self.disk.items():
            before = max((size for at_s, size in values if end_s * 0.2 <= at_s < end_s * 0.4), default=0)
            after = max((size for at_s, size in values if at_s >= end_s * 0.8), default=0)
            if after - before > max(DISK_GROWTH_BYTES_MAX, before * 0.5):
                grown.append(f"{name}: {before / _MB:.0f} -> {after / _MB:.0f} MB")
        return grown

    def table(self) -> list[str]:
        """Lines for people."""
        lines = []
        for kind, ages in sorted(self.rss_by_age().items()):
            cells = ", ".join(f"from {age}: {rss / _MB:.0f}" for age, rss in ages.items())
            lines.append(f"memory of a {kind} by age, median MB: {cells or 'too few samples'}")
        for name, values in self.disk.items():
            sizes = [size / _MB for _, size in values]
            thirds = [sizes[len(sizes) * part // 3 : len(sizes) * (part + 1) // 3] for part in range(3)]
            peaks = ", ".join(f"{max(part):.1f}" for part in thirds if part)
            lines.append(f"{name}, highest MB by thirds of the run: {peaks}")
        return lines
