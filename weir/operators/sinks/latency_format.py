"""Text lines and a histogram of latencies, in one compiled pass."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from weir.kernels.declare import byte_kernel

#: Bytes that a line takes at most, without the arrival: comma, sign, 16 digits, point, 3 digits, newline.
LINE_BYTES_MAX = 24

#: Values below this have a bucket each; above, a bucket spans at most 0.1 % of its value.
_EXACT = 2048
_HALF = _EXACT // 2
_BUCKET_COUNT = _EXACT + 52 * _HALF

_types: Any = numba.types
_I64_OUT = _types.Array(_types.int64, 1, "C")
_I64_IN = _types.Array(_types.int64, 1, "C", readonly=True, aligned=False)
_U8_OUT = _types.Array(_types.uint8, 1, "C")


@byte_kernel(_types.int64(_U8_OUT, _types.int64, _I64_IN, _U8_OUT, _I64_OUT, _I64_OUT))
def format_latencies(
    prefix: np.ndarray,
    arrival_us: int,
    ingest_us: np.ndarray,
    out: np.ndarray,
    buckets: np.ndarray,
    totals: np.ndarray,
) -> int:
    """Write a line ``<prefix><latency ms with 3 decimals>`` per event, and count latencies.

    Args:
        prefix: uint8, what each line starts with.
        arrival_us: when the events arrived.
        ingest_us: int64, shape (events,), when each was due or read.
        out: uint8, room for ``len(prefix) + LINE_BYTES_MAX`` bytes per event.
        buckets: int64 histogram, updated.
        totals: int64 sum, least and greatest latency in µs, updated.

    Returns:
        Bytes written.
    """
    at = 0
    for event in range(len(ingest_us)):
        latency = arrival_us - ingest_us[event]
        totals[0] += latency
        totals[1] = min(totals[1], latency)
        totals[2] = max(totals[2], latency)
        value = max(latency, 0)
        shift = 0
        while (value >> shift) >= _EXACT:
            shift += 1
        bucket = value if shift == 0 else _EXACT + (shift - 1) * _HALF + (value >> shift) - _HALF
        buckets[bucket] += 1
        for byte in range(len(prefix)):
            out[at + byte] = prefix[byte]
        at += len(prefix)
        if latency < 0:
            out[at] = 0x2D
            at += 1
            latency = -latency
        whole = latency // 1000
        length = 1
        limit = 10
        while length < 16 and whole >= limit:
            length += 1
            limit *= 10
        end = at + length
        for place in range(length):
            out[end - 1 - place] = 48 + whole % 10
            whole //= 10
        rest = latency % 1000
        out[end] = 0x2E
        out[end + 1] = 48 + rest // 100
        out[end + 2] = 48 + rest // 10 % 10
        out[end + 3] = 48 + rest % 10
        out[end + 4] = 0x0A
        at = end + 5
    return at


def _bucket(value_us: int) -> int:
    """The bucket that the kernel counts a latency in."""
    shift = max(value_us.bit_length() - _EXACT.bit_length() + 1, 0)
    return value_us if not shift else _EXACT + (shift - 1) * _HALF + (value_us >> shift) - _HALF


class LatencyText:
    """Formats batches of latencies and keeps their statistics."""

    def __init__(self) -> None:
        self._out = np.empty(0, dtype=np.uint8)
        self._buckets = np.zeros(_BUCKET_COUNT, dtype=np.int64)
        self._totals = np.array([0, 2**63 - 1, -(2**63)], dtype=np.int64)
        #: Events so far.
        self.events = 0

    def add(self, arrival_us: int, ingest_us: np.ndarray) -> memoryview:
        """The lines of a batch; valid until the next call.

        Args:
            arrival_us: epoch µs at which the batch arrived.
            ingest_us: int64, shape (events,).
        """
        prefix = np.frombuffer(bytearray(b"%d," % (arrival_us // 1000)), dtype=np.uint8)
        needed = len(ingest_us) * (len(prefix) + LINE_BYTES_MAX)
        if needed > len(self._out):
            self._out = np.empty(needed, dtype=np.uint8)
        length = format_latencies(prefix, arrival_us, ingest_us, self._out, self._buckets, self._totals)
        self.events += len(ingest_us)
        return self._out.data[:length]

    def state(self) -> dict[str, object]:
        """The statistics as JSON values, for a snapshot; histogram buckets only where there is something."""
        # All of them are more than a processor keeps in its cache beside a job.
        filled = np.flatnonzero(self._buckets[: _bucket(max(int(self._totals[2]), 0)) + 1])
        return {
            "events": self.events,
            "totals_us": self._totals.tolist(),
            "buckets": [filled.tolist(), self._buckets[filled].tolist()],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state` returned."""
        numbers, counts = state["buckets"]
        self._buckets[:] = 0
        self._buckets[numbers] = counts
        self._totals[:] = state["totals_us"]
        self.events = int(state["events"])

    def percentile_ms(self, percent: float) -> float | None:
        """Nearest-rank percentile, exact below 2.048 ms and within 0.1 % above; None without events."""
        if not self.events:
            return None
        rank = max(1, int(np.ceil(self.events * percent / 100)))
        bucket = int(np.searchsorted(np.cumsum(self._buckets), rank))
        if bucket < _EXACT:
            return bucket / 1000
        shift, rest = divmod(bucket - _EXACT, _HALF)
        low = (rest + _HALF) << (shift + 1)
        return (low + (1 << shift)) / 1000

    def summary(self) -> dict[str, float | int | None]:
        """Number of events and latencies in ms, for the sidecar."""
        total, least, greatest = self._totals.tolist()
        some = self.events > 0
        return {
            "events": self.events,
            "latency_ms_min": least / 1000 if some else None,
            "latency_ms_mean": round(total / self.events / 1000, 6) if some else None,
            "latency_ms_max": greatest / 1000 if some else None,
            "latency_ms_p50": self.percentile_ms(50),
            "latency_ms_p95": self.percentile_ms(95),
            "latency_ms_p99": self.percentile_ms(99),
        }
