"""One simulated task manager process: production parts on simulated threads, clock, connections and stores."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from experiments.simulation.clock import WorldClock
from experiments.simulation.connection import Connection, ServingProcess
from experiments.simulation.network import SimulatedNetwork
from experiments.simulation.state import open_simulated_state
from experiments.simulation.world import CONTROL_PLANE, SCALE, Violation
from task_manager.job_opening import JobPlaces
from task_manager.job_slot import JobSlot
from task_manager.link.control_calls import GrpcControlCalls
from task_manager.link.control_link import ControlLink
from task_manager.link.control_planes import ControlPlanes
from task_manager.metrics import TaskManagerMetrics
from task_manager.services.control_service import ControlService
from task_manager.state.state_service import StateService
from weir.config import Config, TaskManagerConfig
from weir.errors import WeirError
from weir.rpc import control_pb2_grpc, state_pb2_grpc

if TYPE_CHECKING:
    from experiments.simulation.run import Simulation

QUOTA = 16


class StepFailedError(Exception):
    """What a step raises now and then."""


class TaskManager(ServingProcess):
    """A restarted one is a new object with the same address."""

    def __init__(self, run: Simulation, address: str) -> None:
        super().__init__(run.world, address, run.threads)
        self._run = run
        self._fails_opening = False
        config = Config(task_manager=_section(run.channel_batches))
        section, clock = config.task_manager, WorldClock(run.world)
        planes = ControlPlanes([CONTROL_PLANE], partial(Connection, self))
        self._link = ControlLink(section, planes, clock)
        calls = GrpcControlCalls(section, planes, clock, lambda: self._link.is_stopped)
        places = JobPlaces(
            lambda module, parameters: run.loaded,
            partial(open_simulated_state, run.world, run.store, address),
            partial(SimulatedNetwork, self),
        )
        self.slot = JobSlot(config, TaskManagerMetrics(clock), clock, self._link.notify, calls, places)
        self.slot.address = address
        service = ControlService(self.slot, section.operator_quota)
        control_pb2_grpc.add_TaskManagerServicer_to_server(service, self.services)
        state_pb2_grpc.add_StateServicer_to_server(StateService(self.slot.find_store), self.services)
        self.threads.spawn(self, self._work, "main")

    def _work(self) -> None:
        try:
            self._link.run(self.slot)
        except WeirError as error:
            raise Violation(f"{self.address} gave up: {error}") from error
        self._link.leave(self.slot)
        self.world.end(self)

    def fail_step(self) -> None:
        """A step of one subtask raises."""
        runtime = self.slot.runtime
        running = [] if runtime is None else runtime.live_subtasks()
        if running and self.is_alive:
            # What came last is the least known to others.
            subtask = running[-1] if self.world.rng.random() < 0.5 else self.world.rng.choice(running)
            self.world.counts["faults"] += 1
            self.world.say(self.address, f"{subtask.subtask} FAILS")
            subtask.mailbox.post(_fail)

    def fail_opening(self) -> None:
        """The next subtask that is made here cannot be opened."""
        self.world.counts["faults"] += 1
        self.world.say(self.address, "the next subtask does not OPEN")
        self._fails_opening = True

    def opens(self) -> None:
        """A subtask is being opened here.

        Raises:
            StepFailedError: now and then.
        """
        if self._fails_opening:
            self._fails_opening = False
            raise StepFailedError("a step could not be opened")


def _fail() -> None:
    raise StepFailedError("a step raised")


def _section(channel_batches: int) -> TaskManagerConfig:
    return TaskManagerConfig(
        operator_quota=QUOTA,
        state_backend="memory",
        # Longer than any outage here.
        connect_timeout_s=1e4 / SCALE,
        batch_size=64,
        operator_buffer_size=channel_batches,
        state_cache_bytes=1 << 20,
        state_flush_interval_ms=500,
    )
