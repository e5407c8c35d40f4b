"""Run seeds: faults at random for a while, then everybody is healthy, and the output must be right."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from experiments.simulation.control_plane import ControlPlaneProcess
from experiments.simulation.loop import world_loop
from experiments.simulation.plan import Job
from experiments.simulation.storage import Output, Register, SimulatedStore
from experiments.simulation.task_manager import CONTROL_PLANE, TaskManager, Writers
from experiments.simulation.world import Violation, World
from weir.errors import WeirError

_SHOW_EVERY = 500
_LOOK_MS = 1.0

_FAULTS = ("crash", "pause", "cut", "control plane") * 2 + ("disk", "step", "step")

#: What can be broken on purpose, and what that is.
FENCES = {
    "acknowledgement": "the control plane takes parts of earlier generations and of ended leases",
    "channel": "task managers take rows of other generations",
    "commit": "the record can be written, and checkpoints confirmed, by a control plane that leads no more",
    "create": "manifests are overwritten, and numbers of an earlier control plane used again",
    "names": "names of pending files do not tell the generation",
    "last part": "a last part counts for a checkpoint whose barrier was passed before",
    "settled": "a job starts again while a manifest is being written",
    "told": "the job counts as finished although not all sinks know the last checkpoint",
    "retired": "a subtask that a rescale retired is left out of the next checkpoint",
}


class SimulationError(WeirError):
    """A seed failed; the message says how to replay it."""


class _Lines(logging.Handler):
    """Shows what the control plane logs among what happens."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        self._world.say("cp log", record.getMessage())


@contextlib.contextmanager
def _told(world: World | None) -> Iterator[None]:
    """Keep the log of the control plane off the terminal, but in the course of a run that is replayed."""
    log = logging.getLogger("control_plane")
    handler = _Lines(world) if world is not None and world.print_line is not None else logging.NullHandler()
    before = log.propagate, log.level
    log.propagate = False
    log.setLevel(logging.DEBUG if isinstance(handler, _Lines) else logging.CRITICAL)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = before[0]
        log.setLevel(before[1])


class Simulation:
    """One run."""

    def __init__(
        self, seed: int, *, broken: str = "", print_line: Callable[[str], None] | None = None
    ) -> None:
        self.world = World(seed, broken=broken, print_line=print_line)
        rng = self.world.rng
        self.job = Job.random(rng)
        self.store = SimulatedStore(self.world)
        self.register = Register(self.world, is_etcd=rng.random() < 0.5)
        self.output, self.writers = Output(self.world), Writers()
        self.names = [f"tm{index}:1" for index in range(rng.randint(1, 3))]
        self._faults_end_ms = rng.choice([0, 100, 250, 400])
        self._fault_ms = rng.choice([15.0, 40.0, 80.0])
        self.world.later(rng.random() * 40, self._fault_at_random)
        self.world.on_risk = self._fault if self._faults_end_ms else None
        self.world.later(self._faults_end_ms, self._heal)

    def run(self) -> Counter[str]:
        """Let it happen; returns what happened how often.

        Raises:
            Violation: something went wrong that must not.
        """
        loop = world_loop(self.world.step)
        try:
            with _told(self.world):
                loop.run_until_complete(self._until_finished())
        finally:
            self._end(loop)
        self.output.check(self.job.expected, in_order=self.job.sinks > 0)
        counts = self.world.counts
        counts["steps"] = self.world.steps
        record = self.register.record
        counts["generations"] = 0 if record is None else record.generation
        counts["results"] = sum(len(results) for _, _, results in self.output.delivered)
        return counts

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let nothing wait for a world that is over."""
        for process in self.world.ever:
            process.is_alive = False
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
            self.world.processes[CONTROL_PLANE] = ControlPlaneProcess(
                self.world, CONTROL_PLANE, self.job, self.store, self.register, len(self.names)
            )

    def _start_task_manager(self, name: str) -> None:
        self.world.processes[name] = TaskManager(
            self.world, name, self.job, self.store, self.output, self.writers
        )

    # --- faults -------------------------------------------------------------------------------------------------

    def _fault_at_random(self) -> None:
        if self.world.now_ms < self._faults_end_ms:
            self.world.later(self.world.rng.random() * 2 * self._fault_ms, self._fault_at_random)
            self._fault()

    def _fault(self) -> None:
        world, rng = self.world, self.world.rng
        kind = rng.choice(_FAULTS)
        name = rng.choice(self.names)
        manager = world.processes[name]
        duration_ms = rng.choice([5.0, 30.0, 80.0, 150.0])
        if kind == "crash" and manager.is_alive:
            world.crash(manager)
            world.later(rng.random() * 60, self._start_task_manager, name)
        elif kind == "pause":
            world.pause(manager, duration_ms)
        elif kind == "cut":
            other = rng.choice([*self.names, CONTROL_PLANE])
            if other != name:
                world.counts["faults"] += 1
                world.say("network", f"CUT {name} from {other} for {duration_ms:.0f} ms")
                world.cut(name, other, duration_ms)
        elif kind == "control plane":
            self._break_control_plane(duration_ms)
        elif kind == "step" and isinstance(manager, TaskManager):
            manager.fail_step()
        elif kind == "disk":
            world.counts["faults"] += 1
            self.store.is_full = True
            world.later(duration_ms, self._empty_disk)

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

    def _heal(self) -> None:
        self.world.say("world", "no more faults")
        self.world.heal()


def replay_command(seed: int, broken: str = "") -> str:
    """How to see the whole course of a seed."""
    return f"python -m experiments simulate --seed {seed}" + (f' --break-fence "{broken}"' if broken else "")


def outcome(seed: int, *, broken: str = "", print_line: Callable[[str], None] | None = None) -> Counter[str]:
    """Run a seed; gives what happened how often.

    Raises:
        SimulationError: it failed.
    """
    try:
        return Simulation(seed, broken=broken, print_line=print_line).run()
    except (WeirError, AssertionError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise SimulationError(f"seed {seed}: {error!r}; replay: {replay_command(seed, broken)}") from error


def run_seeds(seeds: Iterable[int], broken: str, show: Callable[[str], None]) -> Counter[str]:
    """Run seeds until one fails; gives what happened how often in all of them.

    Raises:
        SimulationError: one failed.
    """
    counts: Counter[str] = Counter()
    for number, seed in enumerate(seeds, 1):
        counts += outcome(seed, broken=broken)
        if number % _SHOW_EVERY == 0:
            show(f"{number} seeds")
    return counts
