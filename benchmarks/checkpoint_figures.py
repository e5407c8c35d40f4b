"""What checkpoints and records say about a steady phase: how long, how much written, how much changed."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.rescale_job import writes_payload
from benchmarks.results import BenchmarkError


def steady_checkpoints(
    checkpoints: Sequence[dict[str, Any]], start_ms: float, stop_ms: float
) -> list[dict[str, Any]]:
    """Those that began in ``start <= time < stop``, oldest first.

    Args:
        checkpoints: as ``GET /checkpoints`` gives them, any order.
        start_ms: wall clock, ms since the epoch.
        stop_ms: of the same clock.
    """
    inside = [
        item
        for item in checkpoints
        if item["started_ms"] is not None and start_ms <= item["started_ms"] < stop_ms
    ]
    return sorted(inside, key=lambda item: int(item["id"]))


def checkpoint_figures(checkpoints: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """``checkpoints`` that are complete, ``checkpoints_failed``, medians and maxima of duration and new bytes.

    Raises:
        BenchmarkError: none is complete.
    """
    complete = [item for item in checkpoints if item["state"] == "COMPLETE"]
    if not complete:
        causes = "; ".join(item["cause"] for item in checkpoints if item["cause"])
        raise BenchmarkError(f"no checkpoint was made in the steady phase: {causes or 'it is too short'}")
    durations = [int(item["duration_ms"]) for item in complete]
    new_bytes = [int(item["new_bytes"]) for item in complete]
    return {
        "duration_ms": statistics.median(durations),
        "duration_ms_max": max(durations),
        "new_bytes": statistics.median(new_bytes),
        "new_bytes_max": max(new_bytes),
        "size_bytes": int(complete[-1]["size_bytes"]),
        "checkpoints": len(complete),
        "checkpoints_failed": sum(item["state"] in ("FAILED", "ABORTED") for item in checkpoints),
    }


def change_figures(
    records: np.ndarray,
    checkpoints: Sequence[dict[str, Any]],
    payload_bytes: int,
    keys: int,
    rewrite_every: int,
) -> dict[str, Any]:
    """Medians of what changed from the beginning of a checkpoint to that of the next; each key counts once.

    Args:
        records: int64, shape (events, 4), see ``record_sink``, by arrival.
        checkpoints: at least one, oldest first.
        payload_bytes: of a key.
        keys: in the state.
        rewrite_every: as the job had it.

    Returns:
        ``changed_bytes`` of payloads, ``changed_share`` of all payloads, ``changed_counts``: keys whose count changed.
        None with a single checkpoint.
    """
    begins_us = [1000 * int(item["started_ms"]) for item in checkpoints]
    cuts = np.searchsorted(records[:, 2], begins_us)
    payloads, counts = [], []
    for low, high in itertools.pairwise(cuts.tolist()):
        part = records[low:high]
        writes = writes_payload(part[:, 0], part[:, 1], rewrite_every)
        payloads.append(len(np.unique(part[writes, 0])))
        counts.append(len(np.unique(part[:, 0])))
    if not payloads:
        return {"changed_bytes": None, "changed_share": None, "changed_counts": None}
    changed = statistics.median(payloads)
    return {
        "changed_bytes": changed * payload_bytes,
        "changed_share": changed / keys,
        "changed_counts": statistics.median(counts),
    }
