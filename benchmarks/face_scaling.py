"""How soon the autoscaler brings the lag of a job back, and frees slots, and how calm it is; a part of ``face``.

The rate of the sources is always the same. What changes is how long a row takes in step ``score``, so the load of that
stage, in busy seconds a second, is known: it is rate times time, whatever the machine does besides.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from experiments.page_clusters import PageCluster

SCORE = 3
TASK_MANAGERS = 4
_RATE = 200.0
#: Of the rows of both sources ``score`` works for 1.2 s, and then 3.6 s, in each second.
_US, _US_TRIPLED = 3_000.0, 9_000.0
_WARM_UP_S, _LAG_BACK_S_MAX, _FREED_S_MAX = 30.0, 300.0, 600.0
#: Stages whose load does not change have the size that they need before the sine begins.
_SETTLE_S = 60.0
#: Back is a lag that is so near to what it was before, for so many looks one after the other.
_NEAR_MS, _LOOKS = 1_000.0, 5
#: In the sine the load of an hour comes in a tenth of the time, and all times of the settings are a tenth, but the
#: window, whose least is 2 s.
_COMPRESSED = 10
_HOUR_S = 3_600.0
_SINE_US = (2_000.0, 6_000.0)
_ENABLED: Mapping[str, object] = {"autoscaler.enabled": "true", "taskManager.operator_quota": 6}
_QUICKER: Mapping[str, object] = {
    **_ENABLED,
    "autoscaler.window_s": 2,
    "autoscaler.cool_down_s": 1,
    "autoscaler.catch_up_s": 60 / _COMPRESSED,
    "autoscaler.scale_down_after_s": 180 / _COMPRESSED,
    "autoscaler.look_ahead_s": 900 / _COMPRESSED,
}


def lag_and_slots(directory: Path) -> dict[str, Any]:
    """Seconds from when a step is three times slower until the lag is back, and from half of it until a slot is free.

    Raises:
        ClusterError: that did not come in time.
    """
    seconds = _WARM_UP_S + _LAG_BACK_S_MAX + _FREED_S_MAX
    with PageCluster(directory, task_managers=TASK_MANAGERS, settings=_ENABLED, has_hot_key=False) as cluster:
        cluster.slow_down(_US)
        cluster.run_job(events=int(seconds * _RATE), rate=_RATE)
        time.sleep(_WARM_UP_S)
        before = cluster.wait_for(lambda status: True, "a status")
        usual_ms, size = _lag_ms(before), _parallelism(before)
        began_s = time.monotonic()
        cluster.slow_down(_US_TRIPLED)
        cluster.wait_for(lambda status: _lag_ms(status) > usual_ms + 2 * _NEAR_MS, "a lag")
        near = _Lasting(lambda status: _lag_ms(status) <= usual_ms + _NEAR_MS)
        grown = cluster.wait_for(near.holds, "the end of the lag", _LAG_BACK_S_MAX)
        lag_back_s, grown_to = near.since_s - began_s, _parallelism(grown)
        began_s = time.monotonic()
        cluster.slow_down(_US_TRIPLED / 2)
        freed = cluster.wait_for(
            lambda status: _parallelism(status) < grown_to, "a slot that is freed", _FREED_S_MAX
        )
        return {
            "lag_back_s": lag_back_s,
            "slots_freed_s": time.monotonic() - began_s,
            "subtasks": [size, grown_to, _parallelism(freed)],
            "scaled": [each["text"] for each in freed["autoscaler"]["decisions"]],
        }


def decisions_per_period(directory: Path, periods: int) -> dict[str, Any]:
    """The most decisions in a period of a load that is a sine; an hour is compressed tenfold."""
    period_s = _HOUR_S / _COMPRESSED
    middle, width = sum(_SINE_US) / 2, (_SINE_US[1] - _SINE_US[0]) / 2
    with PageCluster(directory, task_managers=TASK_MANAGERS, settings=_QUICKER, has_hot_key=False) as cluster:
        cluster.slow_down(_SINE_US[0])
        cluster.run_job(events=int((_SETTLE_S + period_s * periods + 30) * _RATE), rate=_RATE)
        time.sleep(_SETTLE_S)
        began_s, counts, before = time.monotonic(), [0] * periods, _decided(cluster)
        while (elapsed_s := time.monotonic() - began_s) < period_s * periods:
            cluster.slow_down(middle - width * math.cos(2 * math.pi * elapsed_s / period_s))
            now = _decided(cluster)
            counts[int(elapsed_s // period_s)] += now - before
            before = now
            time.sleep(1.0)
        status = cluster.wait_for(lambda status: True, "a status")
    return {
        "decisions_per_period": max(counts),
        "decisions_by_period": counts,
        "decided": [each["text"] for each in status["autoscaler"]["decisions"]],
        "period_s": period_s,
    }


class _Lasting:
    """A condition that has to hold in some looks, one after the other."""

    def __init__(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        self._condition = condition
        self._looks = 0
        #: When it began to hold, monotonic.
        self.since_s = 0.0

    def holds(self, status: dict[str, Any]) -> bool:
        """Look once more."""
        if not self._condition(status):
            self._looks = 0
            return False
        if not self._looks:
            self.since_s = time.monotonic()
        self._looks += 1
        time.sleep(0.2)
        return self._looks >= _LOOKS


def _lag_ms(status: dict[str, Any]) -> float:
    """What half of the rows take from when they are due to their end; no row for ten seconds is a lag, too."""
    latency_ms = status["totals"]["latency_p50_ms"]
    return math.inf if latency_ms is None else float(latency_ms)


def _parallelism(status: dict[str, Any]) -> int:
    return int(status["stages"][SCORE]["parallelism"])


def _decided(cluster: PageCluster) -> int:
    """Rescales so far, of all stages: as many as changes that were decided."""
    return len(cluster.http("GET", "/rescales")[1])
