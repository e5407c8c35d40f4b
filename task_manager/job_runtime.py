"""One deployed job on one task manager: its subtasks, their channels, and the store they share."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import grpc
import numpy as np

from task_manager.channels import Channel, Inbox, LocalChannel
from task_manager.credits import ChannelLimits, CreditGate
from task_manager.mailbox import Mailbox
from task_manager.metrics import TaskManagerMetrics
from task_manager.operator_chain import OperatorChain
from task_manager.output import Output, OutputEdge
from task_manager.progress import SubtaskProgress, SubtaskState
from task_manager.remote_channel import RemoteChannel, check_channel_job, connect
from task_manager.subtask import SourceSubtask, Subtask, SubtaskTimers, TaskSubtask
from task_manager.writer import BatchPolicy
from weir.clock import Clock
from weir.config import TaskManagerConfig
from weir.errors import HandshakeError
from weir.graph import Edge, Node, PhysicalGraph
from weir.metrics import SubtaskLabels
from weir.operators.base import OperatorContext
from weir.operators.dead_letters import DeadLetterFile
from weir.operators.registry import create_operator, create_reader
from weir.protocol.fencing import EpochFence
from weir.specs import JsonLinesSpec, ParquetSpec, SourceSpec
from weir.state.api import StateBackend
from weir.types import ChannelId, SubtaskId
from weir.wire import JobIdentity, message_size_options

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobSettings:
    """What the control plane decides for the whole job."""

    watermark_interval_ms: float
    out_of_order_grace_period_ms: float
    idle_timeout_ms: float
    #: Wall clock of the deployment, epoch µs, the same on all task managers.
    deployed_us: int
    #: Configuration of the run, for sidecars.
    run_facts: dict[str, object] = field(default_factory=dict)


@dataclass
class _Running:
    subtask: Subtask
    chain: OperatorChain
    dead_letters: DeadLetterFile | None


class JobRuntime:
    """Called by the gRPC server's threads; :meth:`deploy` calls come one at a time, consumers first."""

    def __init__(
        self,
        identity: JobIdentity,
        graph: PhysicalGraph,
        settings: JobSettings,
        config: TaskManagerConfig,
        address: str,
        store: StateBackend,
        metrics: TaskManagerMetrics,
        clock: Clock,
        on_change: Callable[[], None],
    ) -> None:
        self.identity = identity
        self.graph = graph
        self.store = store
        self.fence = EpochFence()
        self._settings = settings
        self._config = config
        self._address = address
        self._metrics = metrics
        self._clock = clock
        self._on_change = on_change
        metrics.show_store(address, config.state_backend, store)
        self._inboxes: dict[SubtaskId, Inbox] = {}
        self._running: dict[SubtaskId, _Running] = {}
        self._connections: dict[str, grpc.Channel] = {}
        self._lock = threading.Lock()
        self._cancelled = False

    def deploy(
        self,
        subtasks: Sequence[SubtaskId],
        locations: Mapping[SubtaskId, str],
        routing: Mapping[int, np.ndarray],
    ) -> None:
        """Create subtasks and connect them to their consumers, which run already.

        Args:
            subtasks: what to create here.
            locations: address of every subtask's task manager.
            routing: per stage with a HASH input, the subtask index of every key group, int32, (max_parallelism,).

        Raises:
            ConnectionLostError, HandshakeError: a consumer's task manager does not take the channel.
        """
        for subtask in subtasks:
            # Before the channels, because a subtask's own consumers may be asked for while it is made.
            self._inboxes[subtask] = Inbox()
        for subtask in subtasks:
            running = self._create(subtask, locations, routing)
            self._running[subtask] = running
            self._metrics.subtasks.add(
                self._labels(subtask), running.subtask.progress, self._inboxes[subtask].__len__
            )
            running.subtask.start()
            if self._cancelled:
                # The order to stop came while this subtask was made.
                running.subtask.cancel()

    def begin(self, job_start_us: int) -> None:
        """Every subtask of the job is ready: sources read; event 0 of a paced one is due at ``job_start_us``."""
        for running in self._running.values():
            running.subtask.begin(job_start_us)

    def find_inbox(self, identity: JobIdentity, channel: ChannelId) -> Inbox:
        """The inbox of a channel's consumer.

        Raises:
            HandshakeError: another job, or no such channel.
        """
        check_channel_job(self.identity, identity)
        inbox = self._inboxes.get(channel.consumer)
        channels = self.graph.input_channels(channel.consumer) if inbox is not None else []
        if inbox is None or channel not in channels:
            raise HandshakeError(f"channel {channel} does not end on task manager {self._address}")
        return inbox

    def progress(self) -> dict[SubtaskId, tuple[SubtaskProgress, int]]:
        """Counters and number of waiting elements per subtask; called by the heartbeat and by metrics."""
        result = {}
        for subtask, running in list(self._running.items()):
            progress = running.subtask.progress
            if running.dead_letters is not None:
                progress.records_rejected = running.dead_letters.rejected
            progress.distinct_keys = sum(
                getattr(operator, "distinct_keys", 0) for operator in running.chain.operators
            )
            result[subtask] = (progress, len(self._inboxes[subtask]))
        return result

    @property
    def ended(self) -> bool:
        """Whether every subtask here is in a final state."""
        final = (SubtaskState.FINISHED, SubtaskState.FAILED, SubtaskState.CANCELED)
        return all(running.subtask.progress.state in final for running in self._running.values())

    def cancel(self) -> None:
        """Tell every subtask to stop, and those that are still being deployed."""
        self._cancelled = True
        for running in list(self._running.values()):
            running.subtask.cancel()

    def close(self, timeout_s: float) -> None:
        """Stop everything and release the store; called once."""
        self.cancel()
        for running in self._running.values():
            if not running.subtask.join(timeout_s):
                log.warning("subtask %s did not stop within %g s", running.subtask.subtask, timeout_s)
        for connection in self._connections.values():
            connection.close()
        self._metrics.hide_store()
        for subtask in self._running:
            self._metrics.subtasks.remove(self._labels(subtask))
        self.store.close()

    def _labels(self, subtask: SubtaskId) -> SubtaskLabels:
        stage = self.graph.stage(subtask.stage_index)
        return SubtaskLabels(self.graph.logical.name, stage.index, stage.name, subtask.subtask_index)

    def _create(
        self, subtask: SubtaskId, locations: Mapping[SubtaskId, str], routing: Mapping[int, np.ndarray]
    ) -> _Running:
        stage = self.graph.stage(subtask.stage_index)
        mailbox = Mailbox(self._inboxes[subtask])
        cache_bytes = self._state_cache_bytes(locations)
        dead_letters = self._dead_letters(subtask, stage.nodes[0])
        operator_nodes = stage.nodes[1:] if stage.is_source else stage.nodes
        output = Output(
            [
                self._output_edge(subtask, edge, mailbox.inbox, locations, routing)
                for edge in self.graph.output_edges(stage.index)
            ],
            mailbox.wait_for_credit,
        )
        chain = OperatorChain(
            [
                (create_operator(node.spec), self._context(subtask, node, cache_bytes, dead_letters, 0))
                for node in operator_nodes
            ],
            output,
            mailbox.check_cancelled,
        )
        timers = SubtaskTimers(
            watermark_interval_ms=self._settings.watermark_interval_ms,
            out_of_order_grace_period_ms=self._settings.out_of_order_grace_period_ms,
            idle_timeout_ms=self._settings.idle_timeout_ms,
            state_flush_interval_ms=self._config.state_flush_interval_ms,
        )
        created: Subtask
        if stage.is_source:
            node = stage.nodes[0]
            assert isinstance(node.spec, SourceSpec)
            created = SourceSubtask(
                subtask,
                chain,
                mailbox,
                timers,
                self._clock,
                self._on_change,
                reader=create_reader(node.spec),
                reader_context=lambda start_us: self._context(
                    subtask, node, cache_bytes, dead_letters, start_us
                ),
                rows_max=self._config.batch_size,
            )
        else:
            inputs = self.graph.input_channels(subtask)
            created = TaskSubtask(subtask, chain, mailbox, timers, self._clock, self._on_change, inputs)
        return _Running(created, chain, dead_letters)

    def _output_edge(
        self,
        subtask: SubtaskId,
        edge: Edge,
        inbox: Inbox,
        locations: Mapping[SubtaskId, str],
        routing: Mapping[int, np.ndarray],
    ) -> OutputEdge:
        policy = BatchPolicy(self._config.batch_size, self._config.batch_timeout_ms)
        channels = {
            channel.consumer.subtask_index: self._channel(channel, inbox, locations[channel.consumer])
            for channel in self.graph.output_channels(subtask, edge)
        }
        for channel in channels.values():
            if isinstance(channel, RemoteChannel):
                channel.wait_accepted()
        return OutputEdge(edge, channels, policy, routing.get(edge.consumer_stage))

    def _channel(self, channel: ChannelId, sender: Inbox, location: str) -> Channel:
        limits = ChannelLimits(
            self._config.operator_buffer_size, self._config.channel_buffer_bytes, self._config.in_flight_ms
        )
        gate = CreditGate(limits, sender)
        if location == self._address:
            return LocalChannel(gate, self.find_inbox(self.identity, channel), channel)
        with self._lock:
            if location not in self._connections:
                options = message_size_options(self._config.message_bytes_max)
                self._connections[location] = connect(location, options)
        return RemoteChannel(
            self._connections[location],
            location,
            self.identity,
            channel,
            gate,
            self._config.message_bytes_max,
        )

    def _context(
        self,
        subtask: SubtaskId,
        node: Node,
        cache_bytes: int,
        dead_letters: DeadLetterFile | None,
        job_start_us: int,
    ) -> OperatorContext:
        return OperatorContext(
            job_name=self.graph.logical.name,
            operator_name=node.name,
            stage_index=subtask.stage_index,
            subtask_index=subtask.subtask_index,
            parallelism=node.parallelism,
            max_parallelism=self.graph.logical.max_parallelism,
            batch_size=self._config.batch_size,
            job_start_us=job_start_us or self._settings.deployed_us,
            clock=self._clock,
            state=self.store if node.is_keyed else None,
            state_id=self.graph.logical.state_id(node.name) if node.is_keyed else 0,
            state_cache_bytes=cache_bytes,
            dead_letters=dead_letters,
            observe_latencies_us=self._metrics.observe_latencies(self._labels(subtask))
            if node.is_sink
            else None,
            run_facts=self._settings.run_facts,
        )

    def _state_cache_bytes(self, locations: Mapping[SubtaskId, str]) -> int:
        """The task manager's cache bound, shared by the keyed operators that the plan places here."""
        sharers = sum(
            node.is_keyed
            for subtask, address in locations.items()
            if address == self._address
            for node in self.graph.stage(subtask.stage_index).nodes
        )
        return self._config.state_cache_bytes // max(sharers, 1)

    def _dead_letters(self, subtask: SubtaskId, node: Node) -> DeadLetterFile | None:
        if not isinstance(node.spec, SourceSpec):
            return None
        on_bad_record = (
            node.spec.on_bad_record if isinstance(node.spec, JsonLinesSpec | ParquetSpec) else "dead_letter"
        )
        return DeadLetterFile(
            self._config.dead_letter_path,
            self.identity.job_id,
            node.name,
            subtask.subtask_index,
            on_bad_record,
            self._config.dead_letter_raw_bytes_max,
        )
