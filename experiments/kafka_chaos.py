"""Kafka to Kafka under faults: task managers, the control plane and brokers are killed, and stages rescaled.

What a reader of committed records sees must be each record once, in the order of its key.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.chaos import SETTINGS, ChaosResult, ChaosRun, ChaosSettings
from experiments.chaos_faults import Faults
from experiments.chaos_schedule import FaultKind, schedule
from experiments.cluster import Cluster, Start
from experiments.kafka_brokers import Brokers
from experiments.kafka_chaos_job import STAGES
from experiments.kafka_traffic import Producing, Reading, make_topics
from experiments.tcp_proxy import TcpProxy

JOB = "experiments.kafka_chaos_job"
_SOURCE, _TARGET, _PARTITIONS = "events", "counts", 6
_KINDS = frozenset(
    {
        FaultKind.KILL_TASK_MANAGER,
        FaultKind.PAUSE_TASK_MANAGER,
        FaultKind.KILL_CONTROL_PLANE,
        FaultKind.KILL_BROKER,
        FaultKind.RESCALE,
    }
)
_END_TIMEOUT_S = 240.0
#: After the last record, for those that would come twice.
_SETTLE_S = 3.0
_SETTINGS = {
    **SETTINGS,
    # Coordinators of transactions move with their brokers, and a checkpoint waits for that.
    "controlPlane.checkpoint_timeout_ms": 30_000,
    # They wait while the brokers start.
    "taskManager.connect_timeout_s": 150,
}


@dataclass
class KafkaChaosResult(ChaosResult):
    """What :func:`run_kafka_chaos` returns. ``events``: records that were produced."""

    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    wrong_counts: int = 0
    output_gap_ms_max: float = 0.0
    #: What was wrong first; empty: nothing was.
    first_wrong: str = ""

    def to_json(self) -> dict[str, Any]:
        """Figures for ``--json``."""
        return {
            "events": self.events,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "out_of_order": self.out_of_order,
            "wrong_counts": self.wrong_counts,
            "output_gap_ms_max": self.output_gap_ms_max,
            "faults": self.faults,
            "faults_by_kind": {kind: len(values) for kind, values in sorted(self.by_kind.items())},
            "seconds_to_checkpoint_max": {kind: max(values) for kind, values in sorted(self.by_kind.items())},
            "generations": self.generations,
            "checkpoints": self.checkpoints,
            "end_s": self.end_s,
        }


def run_kafka_chaos(
    directory: Path,
    settings: ChaosSettings,
    report: Callable[[str], None],
    environment: Mapping[str, str] | None = None,
    popen: Start | None = None,
) -> KafkaChaosResult:
    """Run the job under faults, then let it come to the end of what was produced.

    Args:
        directory: for everything; what an earlier run left there is removed.
        settings: of the run.
        report: takes a line for every fault.
        environment: variables of the processes.
        popen: starts them; None: ``subprocess.Popen``.

    Raises:
        ChaosError: the job failed, hangs, or a process ended that nobody had ended.
        ServiceError: there is no Java or no Maven.
    """
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    result = KafkaChaosResult(settings)
    with ExitStack() as stack:
        brokers = Brokers(directory / "brokers")
        stack.callback(brokers.close)
        cluster = Cluster(
            directory,
            task_managers=settings.task_managers,
            settings={**_SETTINGS, "taskManager.rocksDBPath": directory / "state" / "data.db"},
            environment=environment,
            popen=popen,
        )
        proxies = {
            f"task_manager_{number}": stack.enter_context(TcpProxy(cluster.grpc_port))
            for number in range(1, settings.task_managers + 1)
        }
        stack.enter_context(cluster)
        parameters: dict[str, object] = {"source": _SOURCE, "target": _TARGET}
        faults = Faults(cluster, {}, proxies, parameters, job=JOB, stages=STAGES, brokers=brokers)
        report("starting three brokers, and task managers meanwhile")
        faults.start_task_managers(settings.task_managers)
        parameters["bootstrap"] = bootstrap = brokers.start()
        make_topics(bootstrap, _SOURCE, _TARGET, partitions=_PARTITIONS, replicas=brokers.count)
        run = _KafkaRun(directory, settings, cluster, faults, bootstrap)
        stack.callback(run.close)
        others = frozenset(FaultKind) - _KINDS
        run.go(schedule(settings.seed, settings.duration_s, settings.every_s, others), result, report)
    return result


class _KafkaRun(ChaosRun):
    """With a producer and a reader besides."""

    #: Three brokers begin at the same time, and make the topics of groups and transactions first.
    start_timeout_s = 150.0
    #: Three brokers on two processors take minutes to find leaders and coordinators after two of them were killed.
    hangs_s = 300.0

    def __init__(
        self, directory: Path, settings: ChaosSettings, cluster: Cluster, faults: Faults, bootstrap: str
    ) -> None:
        super().__init__(directory, settings, cluster, faults)
        self._reading = Reading(bootstrap, _TARGET)
        self._producing = Producing(bootstrap, _SOURCE, settings.rate)

    def close(self) -> None:
        """Stop both ends; a second time does nothing."""
        self._producing.halt()
        self._reading.stop()

    def _start(self) -> None:
        # Task managers run already.
        self._faults.start_control_plane()

    def _begin(self) -> None:
        self._reading.measure_gaps(on=True)

    def _finish(self, result: ChaosResult) -> None:
        """Until everything that was produced has come; faults that are on end in their time."""
        assert isinstance(result, KafkaChaosResult)
        began_s = time.monotonic()
        self._reading.measure_gaps(on=False)
        result.events = self._producing.stop()
        while self._reading.count < result.events and time.monotonic() - began_s < _END_TIMEOUT_S:
            self._step(result)
        result.end_s = time.monotonic() - began_s
        settled_s = time.monotonic() + _SETTLE_S
        while time.monotonic() < settled_s:
            self._step(result)
        self._reading.stop()
        reading = self._reading
        result.lost = result.events - reading.count
        result.duplicated, result.out_of_order = reading.duplicated, reading.out_of_order
        result.wrong_counts, result.first_wrong = reading.wrong_counts, reading.first_wrong
        result.output_gap_ms_max = reading.gap_s_max * 1000
        self._note_end(result)
