"""``workflows run payloads``, ``compaction`` and ``block-cache``: one setting is another one, all else is the same."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments.workflows.driver import Launch
from experiments.workflows.growth import check_room, launch_and_wait, sum_of, task_managers_cpu_s
from experiments.workflows.trial import Say, Trial

CSV_NAME = "variants.csv"
_KIB, _MIB = 1 << 10, 1 << 20
#: Before each measurement: the first rows load code.
_WARM_UP = Launch(1000, 2000, 2, drivers=2, prefix="warm")
#: Each task of more workflows than the cache of decoded state holds, so that their latest task runs are read.
_READING = Launch(4_000, 2_000, 20, drivers=2, prefix="reading")
_SMALL_STATE_CACHE = {"taskManager.state_cache_bytes": 4 * _MIB}
#: Memory tables are small, so that as little as 160 MB of payloads is merged several times.
_MERGING = {
    "taskManager.rocksdb.write_buffer_bytes": _MIB,
    "taskManager.rocksdb.write_buffer_total_bytes": 4 * _MIB,
    "taskManager.rocksdb.level_0_runs": 4,
}
#: They fire at any time of a measurement.
_WITHOUT_TIMERS = {"timers": "none"}


@dataclass(frozen=True)
class Variant:
    """What is compared with others of a series.

    Attributes:
        name: in tables and pictures.
        launch: what is measured, as fast as possible.
        settings: of the configuration.
    """

    name: str
    launch: Launch
    settings: Mapping[str, object] = field(default_factory=dict)


def _of_payload(size: int) -> Variant:
    return Variant(f"{size:,} bytes", Launch(1000, size, 50, drivers=2, prefix="payload"))


def _of_compaction(kind: str) -> Variant:
    settings = _SMALL_STATE_CACHE | _MERGING | {"taskManager.rocksdb.compaction": kind}
    return Variant(kind, _READING, settings)


def _of_block_cache(mebibytes: int) -> Variant:
    # Past the page cache, which else has the blocks that this one lacks.
    settings = {
        "taskManager.rocksdb.block_cache_bytes": mebibytes * _MIB,
        "taskManager.rocksdb.direct_io": True,
        "taskManager.rocksdb.statistics": True,
    }
    return Variant(f"{mebibytes} MiB", _READING, _SMALL_STATE_CACHE | _MERGING | settings)


SERIES: dict[str, tuple[Variant, ...]] = {
    "payloads": tuple(map(_of_payload, (32, 500, 2_000, 10_000))),
    "compaction": tuple(map(_of_compaction, ("level", "universal"))),
    "block-cache": tuple(map(_of_block_cache, (1, 8, 64))),
}


def run_variants(
    out: Path,
    series: str,
    repeat: int,
    store: str,
    log: str,
    payload: str,
    say: Say,
    settings: Mapping[str, object] | None = None,
) -> list[Path]:
    """Measure all variants of a series in turn, so many times, each on a store of its own; returns what was written.

    Args:
        out: directory of the results.
        series: one of :data:`SERIES`.
        repeat: rounds; tables and pictures have the medians.
        store: what ``--store`` takes.
        log: "weir" or "kafka".
        payload: "compressible" or "random".
        say: told of progress.
        settings: of the configuration, of all variants; they win.

    Raises:
        InputError: the disk has too little room.
        WeirError: a process ended, or Spark failed.
    """
    out.mkdir(parents=True, exist_ok=True)
    variants = SERIES[series]
    temporary = Path(tempfile.gettempdir())
    check_room(temporary, max(_payload_bytes(each.launch) for each in variants), str(temporary), "payloads")
    rows: list[dict[str, Any]] = []
    path = out / CSV_NAME
    for number in range(repeat):
        for position, variant in enumerate(variants):
            say(f"{series}: {variant.name}, round {number + 1} of {repeat}")
            measured = _measure(variant, store, log, payload, say, settings or {})
            rows.append({"series": series, "position": position, "variant": variant.name, **measured})
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
    from workload.variants import draw_variants

    return [path, *draw_variants(path, out)]


def _measure(
    variant: Variant, store: str, log: str, payload: str, say: Say, settings: Mapping[str, object]
) -> dict[str, Any]:
    launch = replace(variant.launch, payload=payload)
    done: list[Launch] = []
    given = {**variant.settings, **settings}
    with (
        tempfile.TemporaryDirectory() as place,
        Trial(
            Path(place), store=store, log=log, say=say, settings=given, parameters=_WITHOUT_TIMERS
        ) as trial,
    ):
        launch_and_wait(trial, done, replace(_WARM_UP, payload=payload))
        before, began_s = trial.metrics(), task_managers_cpu_s(trial)
        took_s = launch_and_wait(trial, done, launch)
        cpu_s = task_managers_cpu_s(trial) - began_s
        metrics, sums = trial.metrics(), trial.sums()

        def grown(name: str, *labels: str) -> float:
            return sum_of(metrics, name, *labels) - sum_of(before, name, *labels)

        reads = grown("weir_store_cache_misses_total")
        looked = {
            each: grown("weir_store_block_cache_total", "kind=data", f"result={each}")
            for each in ("hit", "miss")
        }
        return {
            "store": store,
            "payload": payload,
            "commands_per_second": round(launch.commands / took_s),
            # Other work on the machine changes it less.
            "cpu_us_per_command": round(1e6 * cpu_s / launch.commands, 1),
            "reads_of_the_store": round(reads),
            "us_per_read": round(1e6 * grown("weir_store_get_seconds_total") / max(1.0, reads), 1),
            "block_cache_hits": round(looked["hit"] / max(1.0, sum(looked.values())), 3),
            # Of each byte of a payload.
            "merged_bytes_per_byte": round(
                grown("weir_store_merged_bytes_total") / _payload_bytes(launch), 2
            ),
            "merge_s": round(grown("weir_store_merge_seconds_total"), 2),
            "stall_s": round(grown("weir_store_stall_seconds_total"), 2),
            "store_kib": round(sum_of(metrics, "weir_store_disk_bytes") / _KIB),
            "level_0_files": round(sum_of(metrics, "weir_store_level_0_files")),
            "wrong": trial.wrong(done, sums),
        }


def _payload_bytes(launch: Launch) -> int:
    return launch.workflows * launch.tasks * launch.payload_bytes
