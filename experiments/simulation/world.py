"""Virtual time, processes that crash and pause, and a network that delays, drops, doubles, reorders and parts."""

from __future__ import annotations

import asyncio
import heapq
import inspect
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import grpc

from weir.errors import ConnectionLostError, InvalidTransitionError, WeirError

#: Events of one run at most; more means that it does not end.
STEPS_MAX = 60_000
#: When a caller learns that a message was lost, or that nobody is there any more.
_LOST_MS = 25.0
#: When it gives up waiting for a reply, unless it says when.
_RPC_TIMEOUT_MS = 500.0
#: So many milliseconds of the processes' clocks are one of the world.
SCALE = 10
#: The address of the control plane.
CONTROL_PLANE = "cp"
#: Methods of which a run may have one whose calls are slow, and one whose calls are lost often, so that whatever can
#: happen meanwhile does.
_MAYBE_BAD = (
    "Deploy",
    "PrepareRescale",
    "Reroute",
    "HandOver",
    "TakeCopy",
    "TriggerCheckpoint",
    "AcknowledgeCheckpoint",
    "EndCheckpoint",
    "TakeImage",
    "Heartbeat",
)

#: Rules whose break shows only where the rows of one input come much later than those of another, and nothing else
#: disturbs a rescale.
SHOWN_BY_SLOW_ROWS = frozenset({"first marker", "leaving"})

Call = Callable[..., None]
Moment = Callable[[str, Sequence[str]], None]


class Violation(AssertionError):
    """The protocol did what it must never do."""


class Reply:
    """What a process answers later."""

    def __init__(self) -> None:
        #: Called with the result or an exception; set by the network before anything else happens.
        self.on_done: Callable[[Any], None] = lambda result: None

    def done(self, result: Any) -> None:
        """Answer; called once."""
        self.on_done(result)


class Process:
    """Something with an address that can crash or pause; a restarted one is another object."""

    def __init__(self, world: World, address: str) -> None:
        self.world, self.address = world, address
        world.ever.append(self)
        self.is_alive = True
        self.is_paused = False
        #: What came while it was paused.
        self.backlog: list[tuple[Call, tuple[Any, ...]]] = []
        #: Kept, so that what a crashed process was about never gets the chance to clean up.
        self._tasks: list[asyncio.Task[Any]] = []
        #: Called when it crashes: what others have open at it is broken.
        self.on_crash: list[Call] = []

    def later(self, delay_ms: float, call: Call, *args: Any) -> None:
        """Do something in this process, unless it is gone by then."""
        self.world.at(self.world.now_ms + delay_ms, self, call, *args)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine of this process; what it raises is a violation."""
        if not self.is_alive:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        task.add_done_callback(self._spawned)

    async def wait(self, delay_ms: float) -> None:
        """Return after this time; never, if the process is gone by then."""
        waited = asyncio.get_running_loop().create_future()
        self.later(delay_ms, _arrived, waited)
        await waited

    def _spawned(self, task: asyncio.Task[Any]) -> None:
        if self.is_alive and not task.cancelled() and task.exception() is not None:
            self.world.failure = task.exception()


class World:
    """Everything outside of the processes."""

    def __init__(
        self, seed: int, *, broken: str = "", print_line: Callable[[str], None] | None = None
    ) -> None:
        self.rng = random.Random(seed)
        #: Processes use much of a core.
        self.is_busy = seed % 2 == 1
        self.broken = broken
        self.print_line = print_line
        self.now_ms = 0.0
        self.steps = 0
        #: By address: the latest one there.
        self.processes: dict[str, Process] = {}
        #: All that ever were.
        self.ever: list[Process] = []
        #: Called at moments at which a fault may hurt, with the task managers that it concerns; see ``Faults.moment``.
        self.moment: Moment = _nothing
        #: What a coroutine raised that nobody waits for.
        self.failure: BaseException | None = None
        #: What happened how often.
        self.counts: Counter[str] = Counter()
        self._queue: list[tuple[float, int, Process | None, Call, tuple[Any, ...]]] = []
        self._order = 0
        self._arrivals: dict[object, float] = {}
        #: Pairs of addresses that cannot reach each other, until when.
        self._cuts: dict[frozenset[str], float] = {}
        rng = self.rng
        self._delay_ms = rng.choice([0.3, 1.0, 3.0])
        self._late = rng.choice([0.0, 0.01, 0.03])
        self._drop = rng.choice([0.0, 0.01, 0.03])
        self._double = rng.choice([0.0, 0.05])
        #: The method whose calls are often late, and how late.
        self._slow = rng.choice(_MAYBE_BAD) if rng.random() < 0.5 else ""
        self._slow_ms = rng.choice([10.0, 30.0, 80.0])
        #: The method whose calls are often lost.
        self._lossy = rng.choice(_MAYBE_BAD) if rng.random() < 0.3 else ""
        #: How much longer rows take from one process to another, for some pairs of processes.
        self._slow_rows_ms = rng.choice([0.0, 0.0, 5.0, 20.0])
        if broken in SHOWN_BY_SLOW_ROWS:
            self._slow_rows_ms = 20.0
        self._slow_pairs: dict[tuple[str, str], bool] = {}

        #: No message is lost, or so late that it may be taken for lost.
        self.is_calm = not (self._late or self._drop or self._lossy or self._slow)

    # --- time ---------------------------------------------------------------------------------------------------

    def at(self, time_ms: float, process: Process | None, call: Call, *args: Any) -> None:
        """Do something at a time, in a process or (None) outside of all."""
        self._order += 1
        heapq.heappush(self._queue, (time_ms, self._order, process, call, args))

    def later(self, delay_ms: float, call: Call, *args: Any) -> None:
        """Do something outside of all processes."""
        self.at(self.now_ms + delay_ms, None, call, *args)

    def step(self) -> bool:
        """Let the next thing happen; False if nothing is left."""
        if self.failure is not None:
            raise self.failure
        if not self._queue:
            return False
        self.now_ms, _, process, call, args = heapq.heappop(self._queue)
        if process is not None and not process.is_alive:
            return True
        if process is not None and process.is_paused:
            process.backlog.append((call, args))
            return True
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise Violation("the run does not end")
        call(*args)
        return True

    def say(self, who: str, what: str) -> None:
        """One line of the course of a run that is replayed."""
        if self.print_line is not None:
            self.print_line(f"{self.steps:5} {self.now_ms:8.2f} {who:10} {what}")

    # --- network ------------------------------------------------------------------------------------------------

    def delay_ms(self) -> float:
        """How long a message takes; now and then much longer."""
        rng = self.rng
        return rng.random() * (40 if rng.random() < self._late else self._delay_ms)

    def _travels_ms(self, method: str) -> float:
        if method == self._slow and self.rng.random() < 0.5:
            return self.delay_ms() + self.rng.random() * self._slow_ms
        return self.delay_ms()

    def _share_lost(self, method: str) -> float:
        return 0.25 if method == self._lossy else self._drop

    def is_cut(self, one: str, other: str) -> bool:
        """Whether two addresses cannot reach each other now."""
        return self._cuts.get(frozenset((one, other)), 0.0) > self.now_ms

    def cut(self, one: str, other: str, duration_ms: float) -> None:
        """Part two addresses for a while."""
        self._cuts[frozenset((one, other))] = self.now_ms + duration_ms

    def heal(self) -> None:
        """From now on every message arrives, once."""
        self._cuts.clear()
        self._late = self._drop = self._double = 0.0
        self._slow, self._lossy, self._slow_rows_ms = "", "", 0.0

    def rpc(
        self,
        source: Process,
        address: str,
        method: str,
        args: tuple[Any, ...],
        done: Callable[[Any], None],
        *,
        timeout_ms: float = _RPC_TIMEOUT_MS,
        doubles: bool = True,
    ) -> None:
        """Call a method of the process at an address; ``done`` gets its result or an exception, once.

        The call may be carried out although it failed, and twice where its callers repeat it (``doubles``).
        """
        answered: list[bool] = []
        lost = ConnectionLostError(f"{address} does not answer")
        name = _name(args) or method
        # One end of a call is a task manager, or both are.
        concerns = [end for end in (address, source.address) if end != CONTROL_PLANE]

        def answer(result: Any) -> None:
            if not answered:
                answered.append(True)
                self.moment(f"{name} answered", concerns)
                done(result)

        def arrive() -> None:
            target = self.processes.get(address)
            if target is None or not target.is_alive:
                reply(ConnectionLostError(f"nothing answers at {address}"))
            else:
                self.at(self.now_ms, target, carry_out, target)

        def carry_out(target: Process) -> None:
            target.on_crash.append(lambda: source.later(self.delay_ms(), answer, lost))
            try:
                result = getattr(target, method)(*args)
            except InvalidTransitionError:
                # A bug in a machine is no answer.
                raise
            except WeirError as error:
                result = error
            if inspect.iscoroutine(result):
                target.spawn(reply_later(result))
            elif isinstance(result, Reply):
                result.on_done = reply
            else:
                reply(result)

        def reply(result: Any) -> None:
            if self.rng.random() >= self._share_lost(name) and not self.is_cut(source.address, address):
                self.at(self.now_ms + self.delay_ms(), source, answer, result)
            else:
                source.later(_LOST_MS, answer, lost)

        async def reply_later(work: Coroutine[Any, Any, Any]) -> None:
            try:
                result = await work
            except (WeirError, grpc.RpcError) as error:
                result = error
            reply(result)

        arriving = self._count_arriving(source, address, name, doubles=doubles)
        for _ in range(arriving):
            self.later(self._travels_ms(name), arrive)
        self.moment(name, concerns)
        source.later(timeout_ms if arriving else _LOST_MS, answer, lost)

    def _count_arriving(self, source: Process, address: str, name: str, *, doubles: bool) -> int:
        """How often a call that is made now is carried out."""
        copies = 2 if doubles and self.rng.random() < self._double else 1
        return sum(
            self.rng.random() >= self._share_lost(name) and not self.is_cut(source.address, address)
            for _ in range(copies)
        )

    def stream(self, source: Process, target: Process, link: object, call: Call, *args: Any) -> bool:
        """Send on a connection between two processes: in order; False if the connection is broken."""
        if not target.is_alive or self.is_cut(source.address, target.address):
            return False
        delay_ms = self.delay_ms()
        if self._slow_rows_ms:
            pair = (source.address, target.address)
            if self._slow_pairs.setdefault(pair, self.rng.random() < 0.4):
                delay_ms += self.rng.random() * self._slow_rows_ms
        arrival = max(self.now_ms + delay_ms, self._arrivals.get((target, link), 0.0))
        self._arrivals[target, link] = arrival
        self.at(arrival, target, call, *args)
        return True

    # --- faults -------------------------------------------------------------------------------------------------

    def crash(self, process: Process) -> None:
        """Kill it with signal 9."""
        self.counts["faults"] += 1
        self.say(process.address, "CRASH")
        self.end(process)

    def end(self, process: Process) -> None:
        """It is gone: nothing happens in it any more, and others learn of it as they can."""
        process.is_alive = False
        for call in process.on_crash:
            self.later(self.delay_ms(), call)
        process.on_crash.clear()

    def pause(self, process: Process, duration_ms: float) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        if process.is_paused or not process.is_alive:
            return
        self.counts["faults"] += 1
        self.say(process.address, f"PAUSE for {duration_ms:.0f} ms")
        process.is_paused = True
        self.later(duration_ms, self._resume, process)

    def _resume(self, process: Process) -> None:
        if not process.is_alive:
            return
        self.say(process.address, "RESUME")
        process.is_paused = False
        backlog, process.backlog = process.backlog, []
        for call, args in backlog:
            process.later(0.0, call, *args)


def _nothing(name: str, addresses: Sequence[str]) -> None:
    """No fault comes."""


def _name(args: tuple[Any, ...]) -> str:
    """The method that is called, by the path and the request that the network carries."""
    if not args:
        return ""
    name = str(args[0]).rpartition("/")[2]
    # It has another meaning than those of a checkpoint.
    return "LastPart" if name == "AcknowledgeCheckpoint" and not args[1].checkpoint_id else name


def _arrived(waited: asyncio.Future[None]) -> None:
    if not waited.done():
        waited.set_result(None)
