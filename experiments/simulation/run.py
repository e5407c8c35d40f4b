"""One run: faults at random for a while, then everybody is healthy, and the output must be right."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator

from experiments.simulation.broken import parts_of_run
from experiments.simulation.control_plane import ControlPlaneProcess
from experiments.simulation.faults import Faults, Theme
from experiments.simulation.ledger import Ledger
from experiments.simulation.loop import world_loop
from experiments.simulation.operators import Order
from experiments.simulation.plan import Job
from experiments.simulation.storage import Output, Register, SimulatedStore
from experiments.simulation.task_manager import QUOTA, TaskManager
from experiments.simulation.threads import SimulatedThreads
from experiments.simulation.world import CONTROL_PLANE, Violation, World
from weir import threads
from weir.rpc import control_pb2

#: When everybody is healthy, a job has to end within this time.
_END_MS_MAX = 5_000.0
_LOOK_MS = 1.0

_NAMES = {value: name.removeprefix("SUBTASK_STATE_") for name, value in control_pb2.SubtaskState.items()}


class _Lines(logging.Handler):
    """Shows what the control plane logs among what happens."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        self._world.say(record.name.split(".")[0], record.getMessage())


@contextlib.contextmanager
def _told(world: World | None) -> Iterator[None]:
    """Keep what the processes log off the terminal, but in the course of a run that is replayed."""
    handler = _Lines(world) if world is not None and world.print_line is not None else logging.NullHandler()
    logs = [logging.getLogger(name) for name in ("control_plane", "task_manager", "weir")]
    before = [(log.propagate, log.level) for log in logs]
    for log in logs:
        log.propagate = False
        log.setLevel(logging.DEBUG if isinstance(handler, _Lines) else logging.CRITICAL + 1)
        log.addHandler(handler)
    try:
        yield
    finally:
        for log, (propagates, level) in zip(logs, before, strict=True):
            log.removeHandler(handler)
            log.propagate = propagates
            log.setLevel(level)


class Simulation:
    """One run."""

    def __init__(
        self, seed: int, *, broken: str = "", print_line: Callable[[str], None] | None = None
    ) -> None:
        self.world = World(seed, broken=broken, print_line=print_line)
        rng = self.world.rng
        # Where a rule is broken much is to happen, so that few seeds are needed to find it.
        self.job = Job.random(rng, is_busy=bool(broken))
        self.store = SimulatedStore(self.world)
        self.register = Register(self.world, is_etcd=rng.random() < (0.75 if broken else 0.5))
        self.output, self.order = Output(self.world), Order(self)
        self.ledger = Ledger(self._generation, self._fail, self.world.counts)
        self.loaded = self.job.loaded(self)
        lag_ms = rng.choice([0.0, 0.05, 0.5])
        self.threads = SimulatedThreads(lambda: rng.random() * lag_ms, self._work_ms)
        self.names = [f"tm{index}:1" for index in range(rng.choice([1, 2, 3, 3, 4]))]
        self.faults = Faults(self, is_busy=bool(broken))
        self.world.moment = self.faults.moment
        self.world.say("world", f"faults: {self.faults.describe()}")
        #: Subtasks that each task manager takes.
        self.quota = QUOTA
        #: Batches that may be under way on a channel.
        self.channel_batches = rng.choice([1, 20])
        self.world.later(self.faults.end_ms, self._heal)

    def _generation(self) -> int:
        """Of the deployment to which the simulated thread belongs that runs now."""
        runtime = self.task_manager_here().slot.runtime
        return 0 if runtime is None else runtime.identity.generation

    def task_manager_here(self) -> TaskManager:
        """The one to which the simulated thread belongs that runs now."""
        thread = self.threads.current
        assert thread is not None
        assert isinstance(thread.process, TaskManager)
        return thread.process

    def _fail(self, violation: Violation) -> None:
        self.world.failure = self.world.failure or violation

    def _work_ms(self) -> float:
        self.world.moment("work", ())
        return self.world.rng.random() * (40 if self.world.rng.random() < 0.25 else 6)

    def run(self) -> Counter[str]:
        """Let it happen; returns what happened how often.

        Raises:
            Violation: something went wrong that must not.
        """
        loop = world_loop(self.world.step)
        threads.install(self.threads)
        try:
            with _told(self.world), parts_of_run(self.world.broken, self.ledger):
                loop.run_until_complete(self._until_finished())
        finally:
            self._end(loop)
        # Results of a key come to a sink from one subtask, unless a rescale has moved the key.
        is_moved = self.world.counts["rescales"] or self.world.counts["drains"]
        is_ordered = self.job.has_ordered_sinks and not is_moved
        self.output.check(
            self.job.expected, in_order=is_ordered, orders_files=is_ordered or not self.job.sinks
        )
        self._check_calm()
        counts = self.world.counts
        counts["steps"] = self.world.steps
        record = self.register.record
        counts["generations"] = 0 if record is None else record.generation
        counts["results"] = sum(len(results) for _, _, results in self.output.delivered)
        return counts

    def _check_calm(self) -> None:
        """Where nothing goes wrong and no message is late, no job starts again.

        Raises:
            Violation: it has.
        """
        record = self.register.record
        if self.faults.theme is Theme.NOTHING and self.world.is_calm and record is not None:
            self.world.counts["calm runs"] += 1
            control_plane = self.world.processes[CONTROL_PLANE]
            assert isinstance(control_plane, ControlPlaneProcess)
            cause = control_plane.parts.job.machine.restart_cause
            # Checkpoints have little time, and may fail for that.
            is_moved = self.world.counts["source moves"] or self.world.counts["drains"]
            if record.generation != 1 and "checkpoint_timeout_ms" not in cause and not is_moved:
                raise Violation(f"nothing went wrong, but the job started again: {cause}")

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let nothing wait for a world that is over."""
        for process in self.world.ever:
            process.is_alive = False
        with _told(None):
            self.threads.close()
        threads.install(None)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.call_soon(loop.stop)
        with contextlib.suppress(Violation), _told(None):
            loop.run_forever()
        loop.close()

    async def _until_finished(self) -> None:
        self._start_control_plane()
        for name in self.names:
            self._start_task_manager(name)
        finished = asyncio.get_running_loop().create_future()

        def look() -> None:
            if self.register.is_finished:
                finished.set_result(None)
            else:
                self.world.later(_LOOK_MS, look)

        look()
        await finished

    def _start_control_plane(self) -> None:
        if not self.register.is_finished:
            self.world.processes[CONTROL_PLANE] = ControlPlaneProcess(self)

    def _start_task_manager(self, name: str) -> None:
        self.world.processes[name] = TaskManager(self, name)

    # --- faults -------------------------------------------------------------------------------------------------

    def strike(self, kind: str, name: str) -> None:
        """Let a fault happen; ``name``: of the task manager that it concerns, if it concerns one."""
        world, rng = self.world, self.world.rng
        manager = world.processes[name]
        assert isinstance(manager, TaskManager)
        duration_ms = rng.choice([5.0, 30.0, 80.0, 150.0])
        match kind:
            case "crash":
                self._kill(name)
            case "pause":
                world.pause(manager, duration_ms)
            case "cut":
                other = rng.choice([*self.names, CONTROL_PLANE])
                if other != name:
                    world.counts["faults"] += 1
                    world.say("network", f"CUT {name} from {other} for {duration_ms:.0f} ms")
                    world.cut(name, other, duration_ms)
            case "control plane":
                self._break_control_plane(duration_ms)
            case "step":
                manager.fail_step()
            case "open":
                manager.fail_opening()
            case "disk":
                world.counts["faults"] += 1
                self.store.is_full = True
                world.later(duration_ms, self._empty_disk)
            case "record":
                world.counts["faults"] += 1
                self.register.is_out_of_order = True
                world.later(duration_ms, self._repair_register)

    def _kill(self, name: str) -> None:
        """Kill a task manager; another process begins at its address after a while."""
        manager = self.world.processes[name]
        if manager.is_alive:
            self.world.crash(manager)
            self.world.later(self.world.rng.random() * 60, self._start_task_manager, name)

    def _break_control_plane(self, duration_ms: float) -> None:
        """Kill it, or let another one take over while it is paused."""
        world, old = self.world, self.world.processes[CONTROL_PLANE]
        assert isinstance(old, ControlPlaneProcess)
        if not old.is_alive:
            return
        if world.rng.random() < 0.5:
            world.crash(old)
            world.later(world.rng.random() * 40, self._start_control_plane)
        else:
            world.pause(old, duration_ms)
            if self.register.is_etcd:
                self._start_control_plane()
                # It learns of that soon after it can do anything again.
                old.later(
                    duration_ms + world.rng.random() * world.rng.choice([3, 40]),
                    old.give_way,
                    "its lease in etcd has ended",
                )

    def _empty_disk(self) -> None:
        self.store.is_full = False

    def _repair_register(self) -> None:
        self.register.is_out_of_order = False

    def _heal(self) -> None:
        self.world.say("world", "no more faults")
        self.faults.heal()
        self.world.heal()
        self.world.later(_END_MS_MAX, self._hangs)

    def _hangs(self) -> None:
        record = self.register.record
        running = [
            f"{manager.address} has "
            + ", ".join(
                f"{s.subtask.stage_index}/{s.subtask.subtask_index} {_NAMES[s.state]}" for s in reports
            )
            for manager in self.world.processes.values()
            if isinstance(manager, TaskManager) and (reports := manager.slot.reports())
        ]
        generation = "not begun" if record is None else f"of generation {record.generation}"
        raise Violation(
            f"the job ({generation}) does not come to its end: {'; '.join(running) or 'nothing runs'}"
        )
