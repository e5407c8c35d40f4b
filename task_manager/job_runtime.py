"""One deployed job on one task manager: its subtasks, where everything is, and the store they share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial

from task_manager.checkpoints.checkpointing import CheckpointParticipant
from task_manager.checkpoints.restore_listener import RestoreListener
from task_manager.checkpoints.standby_keeper import StandbyKeeper
from task_manager.connections import check_channel_job
from task_manager.exchange.inbox import Inbox
from task_manager.exchange.inboxes import Inboxes
from task_manager.exchange.peer_network import PeerNetwork
from task_manager.job_stores import JobStores
from task_manager.metrics import TaskManagerMetrics
from task_manager.progress import FINAL_STATES, SubtaskProgress, SubtaskState
from task_manager.queries.answers import Answers
from task_manager.queries.open_checkpoints import OpenCheckpoints
from task_manager.rescale.rescaling import RescaleParticipant
from task_manager.state.job_database import JobDatabase
from task_manager.subtasks.progress_reports import current_progress
from task_manager.subtasks.running import RunningSubtask
from task_manager.subtasks.sampling import Samples, sample, threads_of
from task_manager.subtasks.source_subtask import SourceSubtask
from task_manager.subtasks.subtask import Subtask
from task_manager.subtasks.subtask_factory import SubtaskFactory, SubtaskPorts
from task_manager.subtasks.task_subtask import TaskSubtask
from task_manager.topology import Topology
from weir import threads
from weir.clock import Clock
from weir.errors import CheckpointError, FailureKind, HandshakeError, WeirError, kind_of
from weir.kernels.habits import note_habitual
from weir.metrics import SubtaskLabels
from weir.operators.registry import runtimes_of
from weir.operators.step_errors import StepError
from weir.plan.graph import PhysicalGraph
from weir.protocol.fencing import EpochFence
from weir.rpc import control_pb2
from weir.rpc.wire import JobIdentity
from weir.types import ChannelId, SubtaskId

log = logging.getLogger(__name__)

#: How long sinks may take to deliver before the control plane asks again.
_DELIVERY_S = 4.0


class JobRuntime:
    """Called by the gRPC server's threads; :meth:`deploy` calls come one at a time, consumers first."""

    def __init__(
        self,
        identity: JobIdentity,
        address: str,
        state: JobStores,
        inboxes: Inboxes,
        running: dict[SubtaskId, RunningSubtask],
        network: PeerNetwork,
        factory: SubtaskFactory,
        checkpoints: CheckpointParticipant,
        rescaling: RescaleParticipant,
        restores: RestoreListener,
        metrics: TaskManagerMetrics,
        clock: Clock,
        on_change: Callable[[], None],
        standby: StandbyKeeper,
        database: JobDatabase | None = None,
    ) -> None:
        """``running`` is filled here and read by the parts; ``on_change``: there is something to report."""
        self._database = database
        #: Keeps the state of other task managers.
        self.standby = standby
        self.identity = identity
        self.store = state.store
        self.fence = EpochFence()
        self.checkpoints = checkpoints
        self.rescaling = rescaling
        self.answers = Answers(
            inboxes.topology.graph,
            running,
            OpenCheckpoints(state.read_manifest, state.images_beside, clock, database),
            factory.state_ids,
            clock,
        )
        self._address = address
        self._state = state
        self._inboxes = inboxes
        self._running = running
        self._network = network
        self._factory = factory
        self._restores = restores
        self._metrics = metrics
        self._clock = clock
        self._on_change = on_change
        self._cancelled = False
        #: Subtasks that have finished, and all of whose output is covered by a checkpoint.
        self._delivered: set[SubtaskId] = set()

    def deploy(self, subtasks: Sequence[SubtaskId], topology: Topology) -> None:
        """Create subtasks and connect them to their consumers, which run already.

        Raises:
            ConnectionLostError, HandshakeError: a consumer's task manager does not take the channel.
        """
        if not subtasks:
            # Only the job was to be loaded and the store to be opened; what is known may be newer.
            return
        self._inboxes.topology = topology
        for subtask in subtasks:
            # Before the channels, because a subtask's own consumers may be asked for while it is made.
            self._inboxes.add(subtask)
        for subtask in subtasks:
            inbox = self._inboxes.of(subtask)
            ports = SubtaskPorts(
                self._on_change,
                self.checkpoints,
                self.checkpoints.ended_id,
                self.rescaling.reports_of(subtask),
                self.rescaling.adopted(subtask),
            )
            running = self._factory.create(subtask, inbox, topology, ports)
            self._restores.began(
                subtask,
                running.subtask.progress,
                self._state.restored_groups(subtask, topology),
                _restoring_groups(running),
            )
            self._running[subtask] = running
            self._metrics.subtasks.add(self._labels(subtask), running.subtask.progress, inbox.__len__)
            self._metrics.show_caches(self._labels(subtask), running.chain.tables.stats)
            if running.subtask.sample.is_last:
                self._metrics.latencies.add(self._labels(subtask), running.subtask.sample.latencies)
            running.subtask.start()
            if self._cancelled:
                # The order to stop came while this subtask was made.
                running.subtask.cancel()

    @property
    def graph(self) -> PhysicalGraph:
        """The job's graph with the subtasks that it has now."""
        return self._inboxes.topology.graph

    def reroute(
        self,
        upstream: Sequence[SubtaskId],
        owners: Sequence[SubtaskId],
        stage_index: int,
        version: int,
        topology: Topology,
        retiring: Sequence[int],
    ) -> None:
        """Switch upstream subtasks here to the present subtasks of a stage; see ``rescaling``."""
        self._inboxes.topology = topology
        self.rescaling.reroute(upstream, owners, stage_index, version, topology, retiring)

    def begin(self, job_start_us: int) -> None:
        """Every subtask of the job is ready: sources read; event 0 of a paced one is due at ``job_start_us``."""
        for running in self._running.values():
            running.subtask.begin(job_start_us)

    def trigger_checkpoint(
        self,
        checkpoint_id: int,
        sources: Sequence[SubtaskId],
        others: Sequence[SubtaskId] = (),
        *,
        holds: bool = False,
    ) -> list[SubtaskId]:
        """Let sources here send a barrier; returns those that have ended, whose last parts count.

        ``others`` make a barrier of their own if all before them have ended.
        ``holds``: sources read nothing after it; see ``SourceSubtask.checkpoint``.
        """
        running: dict[SubtaskId, SourceSubtask] = {}
        for subtask in sources:
            found = self._running.get(subtask)
            if found is None or not isinstance(found.subtask, SourceSubtask):
                # Before any has been told: a call that is refused may come again.
                raise HandshakeError(f"source {subtask} does not run on task manager {self._address}")
            running[subtask] = found.subtask
        self.checkpoints.begun(checkpoint_id)
        ended = []
        for subtask, source in running.items():
            begin = partial(source.checkpoint, checkpoint_id, holds=holds)
            if source.mailbox.post(begin, wakes=not source.waits_for_turn, at_pauses=True) is None:
                ended.append(subtask)
        for subtask in others:
            found = self._running.get(subtask)
            if found is not None and isinstance(found.subtask, TaskSubtask):
                want = partial(found.subtask.want_checkpoint, checkpoint_id)
                found.subtask.mailbox.post(want, at_pauses=True)
        return ended

    def end_checkpoint(
        self, checkpoint_id: int, ended: Sequence[SubtaskId], *, committed: bool, waits: bool = False
    ) -> dict[SubtaskId, tuple[str, FailureKind]]:
        """A checkpoint is complete, or was given up.

        Returns when sinks that have ended have delivered; the others do so between two batches.

        Args:
            checkpoint_id: of the checkpoint.
            ended: subtasks that have ended, whose last parts it holds.
            committed: False: it was given up.
            waits: return when sinks that still run have delivered as well.

        Returns:
            Those that have ended and could not deliver, with the cause and what it says about the next attempt.

        Raises:
            CheckpointError: with ``waits``, a sink that runs has not delivered; a second call is harmless.
        """
        delivering: list[Future[None]] = []
        self.checkpoints.ended(checkpoint_id, committed=committed)
        self.answers.tidy()
        here = list(self._running.items())
        for subtask, running in here:
            if committed and running.group_state is not None:
                running.group_state.backend.committed(checkpoint_id)
            if committed and subtask not in ended:
                posted = running.subtask.commit(checkpoint_id, is_last=False, waits=waits)
                delivering += [posted] if posted is not None else []
            if isinstance(running.subtask, TaskSubtask):
                give_up = partial(running.subtask.end_checkpoint, checkpoint_id)
                # Where it is complete, nothing waits for its end any more.
                running.subtask.mailbox.post(give_up, wakes=not committed, at_pauses=True)
            elif isinstance(running.subtask, SourceSubtask):
                end = partial(running.subtask.end_checkpoint, checkpoint_id, committed=committed)
                running.subtask.mailbox.post(end, wakes=not committed, at_pauses=True)
        failures: dict[SubtaskId, tuple[str, FailureKind]] = {}
        for subtask, running in here:
            if committed and subtask in ended:
                try:
                    if self._database is not None and running.group_state is not None:
                        self._database.applying.finish(checkpoint_id, _DELIVERY_S)
                    running.subtask.commit(checkpoint_id, is_last=True)
                except (WeirError, StepError) as error:
                    kind = error.kind if isinstance(error, StepError) else kind_of(error)
                    failures[subtask] = str(error), kind
                else:
                    self._delivered.add(subtask)
        if waits:
            _wait_for(delivering, checkpoint_id)
        return failures

    @property
    def waits_for(self) -> str:
        """What rows wait for outside of the job, one line; empty: nothing."""
        return "" if self._database is None else self._database.waits_for

    def state_files(self) -> control_pb2.StateFiles:
        """What this deployment has fetched to open state, what is kept of other task managers, and stalls."""
        files, size_bytes = self._state.fetched
        kept = self.standby.progress
        stalls, stall_s = self.store.stalls()
        return control_pb2.StateFiles(
            fetched_files=files,
            fetched_bytes=size_bytes,
            standby_checkpoint_id=kept.checkpoint_id,
            standby_bytes=kept.held_bytes,
            standby_missing_bytes=kept.missing_bytes,
            standby_problem=kept.problem,
            write_stalls=stalls,
            write_stall_ms=int(stall_s * 1e3),
        )

    def deliver_last_parts_again(self) -> None:
        """Tell another control plane, which has taken over, the last parts of subtasks that have ended."""
        self.checkpoints.deliver_last_parts_again()

    def find_inbox(self, identity: JobIdentity, channel: ChannelId) -> Inbox:
        """Returns the inbox of a channel's consumer; see ``Inboxes.open``.

        Raises:
            HandshakeError: another job, or no such channel.
        """
        check_channel_job(self.identity, identity)
        return self._inboxes.open(channel)

    def progress(self) -> dict[SubtaskId, tuple[SubtaskProgress, int]]:
        """Counters and number of waiting elements per subtask; called by the heartbeat and by metrics."""
        result = {}
        for subtask, running in list(self._running.items()):
            self._restores.progressed(subtask, _restoring_groups(running))
            result[subtask] = current_progress(running), self._inboxes.queue_depth(subtask)
        return result

    def profile(self, stage_index: int, duration_s: float, is_wanted: Callable[[], bool]) -> Samples:
        """Look for so long where the threads of a stage's subtasks are; blocks meanwhile."""
        return sample(partial(threads_of, self._running, stage_index), duration_s, self._clock, is_wanted)

    def align(self, lowest_ms: Mapping[str, int]) -> None:
        """Tell sources of the lowest watermark of each group of sources that wait for each other."""
        for running in list(self._running.values()):
            running.align(lowest_ms)

    def hold_back(self, reason: str) -> None:
        """Let sources read nothing for this reason; empty: they read on."""
        for running in list(self._running.values()):
            running.hold_back(reason)

    def forget(self, subtasks: Sequence[SubtaskId]) -> None:
        """Drop what is kept of subtasks that are not part of the job any more; one that still runs is stopped."""
        self._state.forget(subtasks)
        for subtask in subtasks:
            running = self._running.get(subtask)
            if running is None:
                continue
            if running.subtask.progress.state not in FINAL_STATES:
                running.subtask.cancel(end_stream=True)
                continue
            self._restores.gave_up(subtask)
            del self._running[subtask]
            has_failed = running.subtask.progress.state is SubtaskState.FAILED
            self._inboxes.forget(subtask, has_failed=has_failed)
            self._metrics.hide_subtask(self._labels(subtask))
            self.rescaling.forget(subtask, running.group_state)

    @property
    def ended(self) -> bool:
        """Whether every subtask here is in a final state."""
        return all(running.subtask.progress.state in FINAL_STATES for running in self._running.values())

    @property
    def is_over(self) -> bool:
        """Whether nothing here needs a control plane any more: all was stopped, or has finished and is delivered.

        False where no subtask runs: this task manager is a standby.
        """
        done = [
            running.subtask.progress.state is SubtaskState.CANCELED
            or subtask in self._delivered
            or (running.subtask.progress.state is SubtaskState.FINISHED and not self._state.checkpoint_store)
            for subtask, running in list(self._running.items())
        ]
        return bool(done) and all(done)

    def live_subtasks(self) -> list[Subtask]:
        """Returns those that have not ended; asked by simulations."""
        subtasks = [running.subtask for running in self._running.values()]
        return [subtask for subtask in subtasks if subtask.progress.state not in FINAL_STATES]

    def cancel(self) -> None:
        """Tell every subtask to stop, and those that are still being deployed."""
        self._cancelled = True
        for running in list(self._running.values()):
            running.subtask.cancel()

    def cancel_subtasks(self, subtasks: Sequence[SubtaskId]) -> None:
        """Tell some subtasks to stop and to end their streams in order; those that are not here are no error."""
        for subtask in subtasks:
            if subtask in self._running:
                self._running[subtask].subtask.cancel(end_stream=True)

    def end_channels_of(self, producers: Sequence[SubtaskId]) -> None:
        """Producers are gone before they sent a row: their channels end here."""
        self._inboxes.end_channels_of(producers)

    def close(self, timeout_s: float) -> None:
        """Stop everything and release the store; called once."""
        self.cancel()
        self.standby.close()
        deadline_s = self._clock.monotonic_s() + timeout_s
        for running in self._running.values():
            if not running.subtask.join(max(deadline_s - self._clock.monotonic_s(), 0)):
                log.warning("%s did not stop within %g s", running.subtask.name, timeout_s)
            elif running.dead_letters is not None:
                running.dead_letters.close()
        for running in self._running.values():
            if running.isolation is not None:
                running.isolation.close()
        self.rescaling.close()
        self.answers.close()
        # First, so that nobody waits for an image of a peer that is paused or cut off.
        self._network.close()
        self.checkpoints.close()
        if self._database is not None:
            self._database.close()
        self._metrics.hide_store()
        for subtask in self._running:
            self._restores.gave_up(subtask)
            self._metrics.hide_subtask(self._labels(subtask))
        self._state.close()
        note_habitual(runtimes_of(self.graph))

    def _labels(self, subtask: SubtaskId) -> SubtaskLabels:
        graph = self._inboxes.topology.graph
        stage = graph.stage(subtask.stage_index)
        return SubtaskLabels(graph.logical.name, stage.index, stage.name, subtask.subtask_index)


def _restoring_groups(running: RunningSubtask) -> int:
    return 0 if running.group_state is None else running.group_state.restoring_groups()


def _wait_for(delivering: Sequence[Future[None]], checkpoint_id: int) -> None:
    threads.wait(delivering, _DELIVERY_S)
    late = [posted for posted in delivering if not posted.done()]
    failed = [posted.exception() for posted in delivering if posted not in late]
    causes = [f"{type(error).__name__}: {error}" for error in failed if error is not None]
    if late or causes:
        cause = causes[0] if causes else f"{len(late)} subtasks are busy"
        raise CheckpointError(f"not all sinks have delivered checkpoint {checkpoint_id}: {cause}")
