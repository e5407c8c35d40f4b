"""Load on state of a given size, for the checkpoint and recovery benchmarks: the rescale benchmark's input and job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.events_file import DATA_DIRECTORY
from benchmarks.rescale_input import input_directory, key_numbers

JOB = "benchmarks.rescale_job"
#: The small state beside the given one.
SMALL_SHARE = 0.1
#: The counts and their payloads.
STAGE = 1


@dataclass(frozen=True)
class StateLoad:
    """One event of every key, ``settle_s`` that is not measured, then ``duration_s`` that is; at one rate."""

    state_bytes: float
    payload_bytes: int
    rate: float
    duration_s: float
    settle_s: float
    #: Part of the payloads that is written anew in every interval.
    change_share: float
    interval_ms: int
    parallelism: int
    data_root: Path = DATA_DIRECTORY
    #: Who counts, see ``rescale_job``.
    state: str = "count"

    @property
    def keys(self) -> int:
        """Each holds a payload of ``payload_bytes``; its key and count come on top."""
        return max(1, round(self.state_bytes / self.payload_bytes))

    @property
    def later_events(self) -> int:
        """Events after the first one of every key."""
        return round(self.rate * (self.settle_s + self.duration_s))

    @property
    def rewrite_every(self) -> int:
        """One of so many events writes a payload anew; 1 may be less than what is asked for."""
        events = self.rate * self.interval_ms / 1e3
        return max(1, round(events / (self.change_share * self.keys)))

    @property
    def steady_s(self) -> float:
        """From the start of the job to what is measured."""
        return self.keys / self.rate + self.settle_s

    @property
    def timeout_s(self) -> float:
        """For the job to end, from any moment on."""
        return 120 + (self.keys + self.later_events) / self.rate * 3

    def numbers(self) -> np.ndarray:
        """Key number of every event, int64, in order."""
        return key_numbers(self.keys, self.later_events, "uniform")

    def parameters(self, numbers: np.ndarray) -> dict[str, Any]:
        """Of the job, but for the directory of the records; the input is made if it is not there yet.

        Args:
            numbers: as :meth:`numbers` gave.
        """
        name = f"keys-{self.keys}-then-{self.later_events}"
        return {
            "input": input_directory(numbers, name, self.data_root),
            "rate": self.rate,
            "payload_bytes": self.payload_bytes,
            "rewrite_every": self.rewrite_every,
            "parallelism": self.parallelism,
            "state": self.state,
        }


@dataclass(frozen=True)
class StateOptions:
    """Command-line options that both benchmarks have."""

    state_bytes: float = 1e9
    payload_bytes: int = 1024
    rate: float = 50_000
    duration_s: float = 30
    settle_s: float = 5
    change_share: float = 0.01
    interval_ms: int = 1000
    parallelism: int = 2
    #: Without: neither the small state nor its bar.
    compare: bool = True
    repeat: int = 1
    data_root: Path = DATA_DIRECTORY
    state: str = "count"

    def load(self, share: float = 1.0) -> StateLoad:
        """The load on this share of the state; the same share of it changes."""
        return StateLoad(
            state_bytes=self.state_bytes * share,
            payload_bytes=self.payload_bytes,
            rate=self.rate,
            duration_s=self.duration_s,
            settle_s=self.settle_s,
            change_share=self.change_share,
            interval_ms=self.interval_ms,
            parallelism=self.parallelism,
            data_root=self.data_root,
            state=self.state,
        )
