"""Half of the engine's key groups move to another task manager, with relinking and without, while commands come."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from experiments.scaling import rescale
from experiments.workflows.driver import Launch
from experiments.workflows.growth import check_room, fill, launch_and_wait
from experiments.workflows.job import ENGINE
from experiments.workflows.trial import WINDOW_MS, Say, Trial
from experiments.workflows.windows import LIMITS_MS, latency_ms_at_most
from weir.subtask_names import CHAINED

#: Commands while groups move, and for how long.
_RATE, _WORKFLOWS, _BESIDE_S = 1_000, 200, 12.0
#: Those of so many seconds are processed before the request.
_AHEAD_S = 3.0
_MIGRATION_S_MAX = 1_800.0


def measure_relink(
    size: int,
    payload: str,
    say: Say,
    *,
    s3_delay_ms: float | None = None,
    standby_replicas: int = 0,
    compare: bool = True,
) -> dict[str, Any]:
    """Measure both ways in turn; returns the fields of issue 30 for relinking, and all figures of each way.

    Args:
        size: bytes of payloads in the store.
        payload: "compressible" or "random".
        say: told of progress.
        s3_delay_ms: see ``Trial``.
        standby_replicas: task managers that keep the tables of each other one.
        compare: measure also without relinking.

    Raises:
        ClusterError: a process ended, or the rescale did not come to its end.
        InputError: the disk has too little room.
    """
    temporary = Path(tempfile.gettempdir())
    check_room(temporary, size, str(temporary), "--relink")
    relinked, *others = (
        _measure(size, payload, say, relinks=relinks, s3_delay_ms=s3_delay_ms, standbys=standby_replicas)
        for relinks in ((True, False) if compare else (True,))
    )
    return {
        "relink_s": relinked["owned_s"],
        "relink_shipped_bytes": relinked["sent_bytes"],
        "relink": relinked,
        "copy": others[0] if others else None,
        "payload_bytes": size,
        "s3_delay_ms": s3_delay_ms,
        "standby_replicas": standby_replicas,
        "wrong": sum(each["wrong"] for each in (relinked, *others)),
    }


def _measure(
    size: int, payload: str, say: Say, *, relinks: bool, s3_delay_ms: float | None, standbys: int
) -> dict[str, Any]:
    done: list[Launch] = []
    beside = Launch(
        _WORKFLOWS,
        2_000,
        round(_RATE * _BESIDE_S / (2 * _WORKFLOWS)),
        rate=_RATE,
        payload=payload,
        prefix="beside",
    )
    settings: dict[str, object] = {
        "taskManager.useRelink": str(relinks).lower(),
        "controlPlane.standby_replicas": standbys,
    }
    with (
        tempfile.TemporaryDirectory() as place,
        Trial(
            Path(place),
            store="hybrid",
            log="weir",
            say=say,
            parallelism=1,
            settings=settings,
            s3_delay_ms=s3_delay_ms,
        ) as trial,
    ):
        launch_and_wait(trial, done, Launch(_WORKFLOWS, 2_000, 5, payload=payload, prefix="warm"))
        fill(trial, done, size, payload, say)
        trial.wait_for_standbys()
        sending = threading.Thread(target=trial.launch, args=(beside,), name="beside", daemon=True)
        sending.start()
        wanted = sum(each.commands for each in done) + round(_RATE * _AHEAD_S)
        trial.wait_for(lambda sums: sums["messages_processed"] >= wanted)
        say(f"{'relinking' if relinks else 'copying'} half of {size:,} bytes")
        before = trial.sums(_this_window_ms() - 3 * WINDOW_MS)
        since_ms = _this_window_ms()
        moved = rescale(trial.cluster, _engine_stage(trial), 2, timeout_s=_MIGRATION_S_MAX, poll_s=0.02)
        sending.join()
        done.append(beside)
        in_all = sum(each.commands for each in done)
        trial.wait_for(lambda sums: sums["messages_processed"] >= in_all)
        during = trial.sums(since_ms)
        # The new subtask has groups that moved, and no others.
        moved_rows = trial.sums(since_ms, subtask=1)
        return {
            "owned_s": round((moved.owned_ms - moved.requested_ms) / 1e3, 3),
            "complete_s": round((moved.completed_ms - moved.requested_ms) / 1e3, 1),
            "phases_ms": moved.phases_ms(),
            "groups": moved.report["groups_total"],
            "groups_relinked": moved.report["groups_relinked"],
            "sent_bytes": moved.report["bytes_sent"],
            "followed_bytes": moved.report["bytes_moved"],
            "pause_ms_max_before": before["pause_ms_max"],
            "pause_ms_max": during["pause_ms_max"],
            "message_latency_ms_max": during["message_latency_ms_max"],
            "moved_rows": moved_rows["messages_processed"],
            "moved_rows_p99_ms_at_most": latency_ms_at_most(moved_rows, 0.99),
            "moved_rows_late": {limit: moved_rows[f"messages_over_{limit}_ms"] for limit in LIMITS_MS},
            "fetched_bytes": sum(item["fetched_bytes"] for item in trial.status()["task_managers"]),
            "wrong": trial.wrong(done, trial.sums()),
        }


def _this_window_ms() -> int:
    return int(time.time() * 1000) // WINDOW_MS * WINDOW_MS


def _engine_stage(trial: Trial) -> int:
    """Index of the stage with the engine."""
    status = trial.status()
    return next(
        index for index, stage in enumerate(status["stages"]) if ENGINE in stage["name"].split(CHAINED)
    )
