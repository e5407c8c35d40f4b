"""Makes the subtasks of one job on one task manager: operators, contexts, output channels, ownership of key groups."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc

from task_manager.checkpoints.checkpointing import CheckpointParticipant
from task_manager.exchange.channels import Channel, Inbox, LocalChannel
from task_manager.exchange.credits import ChannelLimits, CreditGate
from task_manager.exchange.gathering import Gathering
from task_manager.exchange.output import Output, OutputEdge
from task_manager.exchange.remote_channel import PeerLink, connect
from task_manager.exchange.writer import BatchPolicy
from task_manager.job_state import JobState
from task_manager.metrics import TaskManagerMetrics
from task_manager.rescale.group_ownership import RescaleReports
from task_manager.rescale.group_state import SubtaskGroupState
from task_manager.state.state_client import GrpcStateClient
from task_manager.subtasks.isolation import Isolation
from task_manager.subtasks.mailbox import Mailbox
from task_manager.subtasks.source_subtask import SourceSubtask
from task_manager.subtasks.subtask import Subtask, SubtaskTimers
from task_manager.subtasks.task_subtask import TaskSubtask
from task_manager.topology import Topology
from weir.clock import Clock
from weir.config import StateMove, StateStrategy, TaskManagerConfig
from weir.errors import GraphError
from weir.graph import Edge, Node, Stage
from weir.metrics import SubtaskLabels
from weir.operators.base import Operator, OperatorContext, SourceReader
from weir.operators.chain import OperatorChain, StepError, naming_step
from weir.operators.dead_letters import DeadLetterFile, letters_stem
from weir.operators.factories import make_operator, make_reader
from weir.operators.known_rows import KnownRows
from weir.operators.user_errors import UserErrors
from weir.protocol.rescale_owner import OwnerMachine
from weir.rpc.wire import JobIdentity, message_size_options
from weir.specs import SourceSpec
from weir.state.placement.hybrid import HybridBackend
from weir.state.placement.remote import RemoteStateClient
from weir.state.tables.opened import StateTables
from weir.types import ChannelId, SubtaskId

#: Stage index and key groups -> address of the store that has the state of each.
LocateGroups = Callable[[int, Sequence[int]], Mapping[int, str]]


@dataclass(frozen=True)
class JobSettings:
    """What the control plane decides for the whole job."""

    watermark_interval_ms: float
    out_of_order_grace_period_ms: float
    idle_timeout_ms: float
    alignment_timeout_ms: float
    #: Wall clock of the deployment, epoch µs, the same on all task managers.
    deployed_us: int
    #: Numbers of the states of keyed steps in the store.
    state_ids: Mapping[str, int]
    #: Steps that raised again and again: rows that make them raise are put aside.
    isolated_steps: tuple[str, ...] = ()
    #: Configuration of the run, for sidecars.
    run_facts: dict[str, object] = field(default_factory=dict)
    #: What becomes of state in rescales, as the control plane says.
    strategy: StateStrategy = field(default_factory=StateStrategy)


@dataclass(frozen=True)
class RunningSubtask:
    """A subtask and what belongs to it."""

    subtask: Subtask
    chain: OperatorChain[Output]
    dead_letters: DeadLetterFile | None
    #: In stages whose subtasks own key groups.
    group_state: SubtaskGroupState | None
    isolation: Isolation | None = None
    #: Of a source.
    reader: SourceReader | None = None


class SubtaskFactory:
    """Used by ``JobRuntime``; its channels share one connection for each peer."""

    def __init__(
        self,
        identity: JobIdentity,
        settings: JobSettings,
        config: TaskManagerConfig,
        address: str,
        state: JobState,
        metrics: TaskManagerMetrics,
        clock: Clock,
        find_local_inbox: Callable[[ChannelId], Inbox],
        locate: LocateGroups,
        errors: UserErrors,
    ) -> None:
        """``locate`` asks the control plane where the state of a stage's key groups is."""
        self._errors = errors
        self._identity = identity
        self._settings = settings
        self._config = config
        self._address = address
        self._state = state
        self._metrics = metrics
        self._clock = clock
        self._find_local_inbox = find_local_inbox
        self._locate = locate
        self._connections: dict[str, grpc.Channel] = {}
        self._links: dict[str, PeerLink] = {}
        self._gathering = Gathering(clock.monotonic_s)
        #: By step: rows put aside before the restart that led here.
        self._known_rows: dict[str, KnownRows] = {}
        self._lock = threading.Lock()

    def create(
        self,
        subtask: SubtaskId,
        inbox: Inbox,
        topology: Topology,
        on_change: Callable[[], None],
        reports: RescaleReports,
        on_adopt: Callable[[SubtaskGroupState], None],
        checkpoints: CheckpointParticipant,
    ) -> RunningSubtask:
        """A subtask that is ready to start, with its channels open.

        Raises:
            ConnectionLostError, HandshakeError: a consumer's task manager does not take the channel.
        """
        stage = topology.graph.stage(subtask.stage_index)
        mailbox = Mailbox(inbox)
        dead_letters = self._dead_letters(subtask, stage.nodes[0])
        group_state = self._group_state(subtask, stage, topology, on_adopt) if stage.has_groups else None
        tables = StateTables(
            self._state.store if group_state is None else group_state.backend,
            self._state_cache_bytes(topology),
            topology.graph.logical.max_parallelism,
            topology.routing[stage.index].groups_of(subtask.subtask_index) if stage.has_groups else None,
        )

        def context(node: Node, job_start_us: int) -> OperatorContext:
            return self._context(subtask, stage, node, tables, dead_letters, job_start_us, topology)

        edges = self._output_edges(subtask, inbox, topology)
        output = Output(edges, mailbox.wait_for_credit, self._clock)
        nodes = stage.nodes[1:] if stage.is_source else stage.nodes
        operators = [(self._make(node), context(node, 0)) for node in nodes]
        made: list[Subtask] = []
        isolation = self._isolation(subtask, stage, lambda: made[0].passed_id)
        chain = OperatorChain(operators, output, mailbox.check_cancelled, tables, isolation)
        if stage.is_source:
            node = stage.nodes[0]
            assert isinstance(node.spec, SourceSpec)
            with self._telling(node):
                reader = make_reader(node)
            source = SourceSubtask(
                subtask,
                chain,
                mailbox,
                self._timers(),
                self._clock,
                on_change,
                checkpoints,
                reader=reader,
                reader_context=lambda start_us: context(node, start_us),
                rows_max=self._config.batch_size,
            )
            made.append(source)
            source.errors = self._errors
            return RunningSubtask(source, chain, dead_letters, None, isolation, reader)
        task = self._task(
            subtask, stage, topology, chain, mailbox, on_change, checkpoints, group_state, reports
        )
        made.append(task)
        return RunningSubtask(task, chain, dead_letters, group_state, isolation)

    def _task(
        self,
        subtask: SubtaskId,
        stage: Stage,
        topology: Topology,
        chain: OperatorChain[Output],
        mailbox: Mailbox,
        on_change: Callable[[], None],
        checkpoints: CheckpointParticipant,
        group_state: SubtaskGroupState | None,
        reports: RescaleReports,
    ) -> TaskSubtask:
        """A subtask with inputs; it owns key groups where rows come by HASH."""
        inputs = topology.input_channels(subtask)
        task = TaskSubtask(
            subtask,
            chain,
            mailbox,
            self._timers(),
            self._clock,
            on_change,
            checkpoints,
            inputs,
            checkpoints.ended_id,
            self._state.rows_for(subtask, topology),
        )
        if group_state is not None:
            group_state.bind(chain.tables)
            machine = OwnerMachine(subtask.subtask_index, topology.routing[stage.index], inputs)
            # Without states there is nothing to keep.
            backend = group_state.backend if group_state.state_ids else None
            task.own_groups(machine, group_state, reports, backend)
        task.errors = self._errors
        return task

    def channel(self, channel: ChannelId, sender: Inbox, location: str) -> Channel:
        """Open a channel; a remote one is accepted when this returns.

        Raises:
            ConnectionLostError, HandshakeError: the consumer's task manager does not take it.
        """
        limits = ChannelLimits(
            self._config.operator_buffer_size, self._config.channel_buffer_bytes, self._config.in_flight_ms
        )
        gate = CreditGate(limits, sender, self._clock)
        if location == self._address:
            return LocalChannel(gate, self._find_local_inbox(channel), channel)
        remote = self._link(location).open(channel, gate, self._config.message_bytes_max)
        remote.wait_accepted()
        return remote

    def _link(self, location: str) -> PeerLink:
        """What all channels to another task manager go through."""
        connection = self.connection(location)
        with self._lock:
            if location not in self._links or self._links[location].is_broken:
                self._links[location] = PeerLink(
                    connection, location, self._identity, self._clock, self._gathering
                )
            return self._links[location]

    def connection(self, location: str) -> grpc.Channel:
        """The connection to another task manager."""
        with self._lock:
            if location not in self._connections:
                options = message_size_options(self._config.message_bytes_max)
                self._connections[location] = connect(location, options)
            return self._connections[location]

    def close(self) -> None:
        """Close all links and connections."""
        with self._lock:
            links, connections = list(self._links.values()), list(self._connections.values())
        for link in links:
            link.close()
        for connection in connections:
            connection.close()

    def state_client(self, stage_index: int, address: str, epochs: Mapping[int, int]) -> RemoteStateClient:
        """Access to the store of another task manager, with an owner's epochs."""
        return GrpcStateClient(
            self.connection(address), address, self._identity, stage_index, epochs, self._clock
        )

    def _group_state(
        self,
        subtask: SubtaskId,
        stage: Stage,
        topology: Topology,
        on_adopt: Callable[[SubtaskGroupState], None],
    ) -> SubtaskGroupState:
        table = topology.routing[stage.index]
        strategy = self._settings.strategy
        state_ids = [self._settings.state_ids[state] for state in stage.states]
        backend = HybridBackend(
            self._state.store,
            self._address,
            state_ids,
            lambda address, epochs: self._peer(stage.index, address, epochs),
            use_migrate=strategy.move is StateMove.FETCHED,
            locate=(lambda groups: self._locate(stage.index, groups)) if strategy.asks_for_places else None,
        )
        owned = {group: table.owner_epochs[group] for group in table.groups_of(subtask.subtask_index)}
        return SubtaskGroupState(
            backend, state_ids, owned, on_adopt, self._state.adoptions(stage.index, owned)
        )

    def _peer(self, stage_index: int, address: str, epochs: Mapping[int, int]) -> RemoteStateClient:
        """Access to what ``HybridBackend`` has under an address: another task manager, or an image."""
        return self._state.image_client(address) or self.state_client(stage_index, address, epochs)

    def _output_edges(self, subtask: SubtaskId, inbox: Inbox, topology: Topology) -> list[OutputEdge]:
        edges = topology.graph.output_edges(subtask.stage_index)
        return [self._output_edge(subtask, edge, inbox, topology) for edge in edges]

    def _output_edge(self, subtask: SubtaskId, edge: Edge, inbox: Inbox, topology: Topology) -> OutputEdge:
        channels = {
            channel.consumer.subtask_index: self.channel(channel, inbox, topology.locations[channel.consumer])
            for channel in topology.graph.output_channels(subtask, edge)
        }
        table = topology.routing.get(edge.consumer_stage)
        policy = BatchPolicy(
            self._config.batch_size, self._config.batch_timeout_ms, self._config.in_flight_ms
        )
        return OutputEdge(edge, channels, policy, table.group_to_subtask if table else None)

    def _timers(self) -> SubtaskTimers:
        return SubtaskTimers(
            watermark_interval_ms=self._settings.watermark_interval_ms,
            out_of_order_grace_period_ms=self._settings.out_of_order_grace_period_ms,
            idle_timeout_ms=self._settings.idle_timeout_ms,
            state_flush_interval_ms=self._config.state_flush_interval_ms,
            alignment_timeout_ms=self._settings.alignment_timeout_ms,
            batch_timeout_ms=self._config.batch_timeout_ms,
            batch_rows_max=self._config.batch_size,
            gathering=self._gathering,
        )

    def _context(
        self,
        subtask: SubtaskId,
        stage: Stage,
        node: Node,
        tables: StateTables,
        dead_letters: DeadLetterFile | None,
        job_start_us: int,
        topology: Topology,
    ) -> OperatorContext:
        logical = topology.graph.logical
        labels = SubtaskLabels(logical.name, stage.index, stage.name, subtask.subtask_index)
        state_ids = {name: self._settings.state_ids[state] for name, state in node.states.items()}
        return OperatorContext(
            job_name=logical.name,
            operator_name=node.name,
            stage_index=subtask.stage_index,
            subtask_index=subtask.subtask_index,
            parallelism=stage.parallelism,
            max_parallelism=logical.max_parallelism,
            batch_size=self._config.batch_size,
            job_start_us=job_start_us or self._settings.deployed_us,
            clock=self._clock,
            tables=tables.of(node.name, state_ids) if node.is_keyed else None,
            dead_letters=dead_letters,
            is_sink=node.is_sink,
            observe_latencies_us=self._metrics.observe_latencies(labels) if node.is_sink else None,
            run_facts=self._settings.run_facts,
            idle_timeout_ms=self._settings.idle_timeout_ms,
            generation=self._identity.generation,
            restored=self._state.restored(subtask, node.name),
            subtask_indices=tuple(stage.subtask_indices),
        )

    def _state_cache_bytes(self, topology: Topology) -> int:
        """The task manager's cache bound, shared by the keyed operators that the plan places here."""
        sharers = sum(
            node.is_keyed
            for subtask, address in topology.locations.items()
            if address == self._address
            for node in topology.graph.stage(subtask.stage_index).nodes
        )
        return self._config.state_cache_bytes // max(sharers, 1)

    def _isolation(self, subtask: SubtaskId, stage: Stage, passed_id: Callable[[], int]) -> Isolation | None:
        if not {node.name for node in stage.nodes} & set(self._settings.isolated_steps):
            return None
        return Isolation(
            self._settings.isolated_steps,
            lambda step: DeadLetterFile(
                self._config.dead_letter_path,
                self._identity.job_id,
                step,
                subtask.subtask_index,
                raw_bytes_max=self._config.dead_letter_raw_bytes_max,
                known_rows=self._known_rows_of(step),
                passed_id=passed_id,
            ),
            self._errors,
        )

    def _known_rows_of(self, step: str) -> KnownRows:
        stem = letters_stem(self._config.dead_letter_path, self._identity.job_id, step)
        with self._lock:
            if step not in self._known_rows:
                self._known_rows[step] = KnownRows(stem, self._identity.generation, self._state.restored_id)
            return self._known_rows[step]

    def _dead_letters(self, subtask: SubtaskId, node: Node) -> DeadLetterFile | None:
        if not isinstance(node.spec, SourceSpec):
            return None
        return DeadLetterFile(
            self._config.dead_letter_path,
            self._identity.job_id,
            node.name,
            subtask.subtask_index,
            node.spec.bad_records,
            self._config.dead_letter_raw_bytes_max,
        )

    def _make(self, node: Node) -> Operator:
        """The operator of a step; the factory of a sink may be the author's."""
        with self._telling(node):
            return make_operator(node)

    @contextmanager
    def _telling(self, node: Node) -> Iterator[None]:
        """Log what the author's factory raises."""
        try:
            with naming_step(node.name, is_sink=node.is_sink):
                yield
        except (StepError, GraphError) as error:
            if error.__cause__ is not None:
                self._errors.tell(node.name, error.__cause__)
            raise
