"""Makes the subtasks of one job on one task manager: chains, output channels, ownership of key groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from task_manager.checkpoints.checkpoint_parts import Checkpoints
from task_manager.exchange.inbox import Inbox
from task_manager.exchange.output import Output
from task_manager.exchange.output_edge import OutputEdge
from task_manager.exchange.peer_network import PeerNetwork
from task_manager.exchange.writer import BatchPolicy
from task_manager.job_stores import JobStores
from task_manager.ownership.group_ownership import RescaleReports
from task_manager.ownership.group_state import SubtaskGroupState
from task_manager.progress import SubtaskProgress
from task_manager.state.job_database import JobDatabase
from task_manager.subtasks.job_settings import JobSettings
from task_manager.subtasks.mailbox import Mailbox
from task_manager.subtasks.running import RunningSubtask
from task_manager.subtasks.source_subtask import SourceSubtask
from task_manager.subtasks.step_parts import StepParts
from task_manager.subtasks.subtask_parts import SubtaskParts, SubtaskTimers
from task_manager.subtasks.task_subtask import TaskSubtask
from task_manager.topology import Topology
from weir.author.operator import OperatorContext
from weir.clock import Clock
from weir.config import StateMove, TaskManagerConfig
from weir.operators.chain import OperatorChain
from weir.operators.registry import create_combiner
from weir.operators.step_flow import WaitingRows
from weir.operators.user_errors import UserErrors
from weir.plan.graph import Edge, Node, PhysicalGraph, Stage
from weir.protocol.rescale.rescale_owner import OwnerMachine
from weir.protocol.watermarks.input_times import restored_times, times_key
from weir.rows.records import InputRows
from weir.state.api import StateBackend
from weir.state.placement.placed_store import PlacedStore
from weir.state.placement.remote import RemoteStateClient
from weir.state.tables.opened import StateTables
from weir.types import SubtaskId

#: Stage index and key groups -> address of the store that has the state of each.
LocateGroups = Callable[[int, Sequence[int]], Mapping[int, str]]


@dataclass(frozen=True)
class SubtaskPorts:
    """Whom a subtask talks to beside its channels."""

    #: There is something to report.
    on_change: Callable[[], None]
    checkpoints: Checkpoints
    #: Checkpoints up to this number are over.
    ended_checkpoint_id: int
    #: Of a subtask that owns key groups: where it sends what it decides in a rescale.
    reports: RescaleReports
    #: Groups came whose state may have to be fetched.
    on_adopt: Callable[[SubtaskGroupState], None]


class SubtaskFactory:
    """Used by ``JobRuntime``, for one job."""

    def __init__(
        self,
        address: str,
        settings: JobSettings,
        config: TaskManagerConfig,
        state: JobStores,
        network: PeerNetwork,
        steps: StepParts,
        clock: Clock,
        locate: LocateGroups,
        errors: UserErrors,
        database: JobDatabase | None = None,
    ) -> None:
        """``locate`` asks the control plane where the state of a stage's key groups is; ``database`` keeps it."""
        self._address = address
        self._settings = settings
        self._config = config
        self._state = state
        self._network = network
        self._steps = steps
        self._clock = clock
        self._locate = locate
        self._errors = errors
        self._database = database

    @property
    def state_ids(self) -> Mapping[str, int]:
        """Numbers of the states of keyed steps in the stores."""
        return self._settings.state_ids

    def create(
        self, subtask: SubtaskId, inbox: Inbox, topology: Topology, ports: SubtaskPorts
    ) -> RunningSubtask:
        """Returns a subtask that is ready to start, with its channels open.

        Raises:
            ConnectionLostError, HandshakeError: a consumer's task manager does not take the channel.
        """
        stage = topology.graph.stage(subtask.stage_index)
        mailbox = Mailbox(inbox)
        progress = SubtaskProgress()
        dead_letters = self._steps.dead_letters(subtask, stage.nodes[0])
        group_state = (
            self._group_state(subtask, stage, topology, ports.on_adopt) if stage.has_groups else None
        )
        backend: StateBackend = self._state.store if group_state is None else group_state.backend
        if group_state is not None and self._database is not None and group_state.state_ids:
            backend = self._database.store(
                group_state.backend,
                lambda: progress.passed_id,
                ports.ended_checkpoint_id,
                mailbox.check_cancelled,
            )
        tables = self._tables(backend, subtask, stage, topology)

        def context(node: Node, job_start_us: int) -> OperatorContext:
            letters = dead_letters
            if not node.is_source:
                letters = self._steps.step_letters(subtask, node, lambda: progress.passed_id)
            return self._steps.context(subtask, stage, node, tables, letters, job_start_us, topology)

        edges = self._output_edges(subtask, inbox, topology)
        output = Output(edges, mailbox.wait_for_credit, self._clock)
        nodes = stage.nodes[1:] if stage.is_source else stage.nodes
        operators = [(self._steps.operator(node), context(node, 0)) for node in nodes]
        isolation = self._steps.isolation(subtask, stage, lambda: progress.passed_id)
        chain = OperatorChain(operators, output, mailbox.check_cancelled, tables, isolation)
        rows = self._state.rows_for(subtask, topology)
        parts = SubtaskParts(
            subtask,
            topology.graph.name_of(subtask),
            chain,
            mailbox,
            self._timers(topology.graph),
            self._clock,
            ports.on_change,
            ports.checkpoints,
            progress,
            self._errors,
            key := times_key(stage.nodes[0].name),
            restored_times(self._state.restored(subtask, key), subtask.subtask_index, stage.subtask_indices),
            [WaitingRows(item.step, item.batch, item.known_ms) for item in rows if item.step],
        )
        if not stage.is_source:
            inputs = [item for item in rows if not item.step]
            task = self._task(parts, stage, topology, ports, group_state, inputs)
            store = None if group_state is None else backend
            return RunningSubtask(task, chain, dead_letters, group_state, isolation, store=store)
        node = stage.nodes[0]
        reader = self._steps.reader(node)
        source = SourceSubtask(
            parts,
            reader,
            lambda start_us: replace(context(node, start_us), wake=mailbox.inbox.wake),
            self._config.batch_size,
            node.watermark,
            self._state.subtasks_with_rows(stage, topology),
        )
        return RunningSubtask(source, chain, dead_letters, None, isolation, reader)

    def _task(
        self,
        parts: SubtaskParts,
        stage: Stage,
        topology: Topology,
        ports: SubtaskPorts,
        group_state: SubtaskGroupState | None,
        rows: Sequence[InputRows],
    ) -> TaskSubtask:
        """A subtask with inputs; it owns key groups where rows come by HASH."""
        subtask = parts.subtask
        inputs = topology.input_channels(subtask)
        task = TaskSubtask(parts, inputs, ports.ended_checkpoint_id, rows)
        if group_state is not None:
            group_state.bind(parts.chain.tables)
            task.sample.group_count = topology.routing[stage.index].max_parallelism
            task.sample.key_columns = {at: edge.key_columns for at, edge in enumerate(stage.inputs)}
            machine = OwnerMachine(subtask.subtask_index, topology.routing[stage.index], inputs)
            # Without states there is nothing to keep.
            backend = group_state.backend if group_state.state_ids else None
            task.own_groups(machine, group_state, ports.reports, backend, stage.keyed_inputs)
        return task

    def _group_state(
        self,
        subtask: SubtaskId,
        stage: Stage,
        topology: Topology,
        on_adopt: Callable[[SubtaskGroupState], None],
    ) -> SubtaskGroupState:
        table = topology.routing[stage.index]
        strategy = self._settings.strategy
        asks = strategy.asks_for_places and self._database is None
        state_ids = [self._settings.state_ids[state] for state in stage.states]
        backend = PlacedStore(
            self._state.store,
            self._address,
            state_ids,
            lambda address, epochs: self._peer(stage.index, address, epochs),
            # Of state in a database only what is not applied is here: it goes along.
            fetches=strategy.move is StateMove.FETCHED or self._database is not None,
            locate=(lambda groups: self._locate(stage.index, groups)) if asks else None,
            notes_changes=strategy.relinks and self._database is None and self._state.publisher is not None,
        )
        owned = {group: table.owner_epochs[group] for group in table.groups_of(subtask.subtask_index)}
        return SubtaskGroupState(
            backend, state_ids, owned, on_adopt, self._state.adoptions(stage.index, owned)
        )

    def _peer(self, stage_index: int, address: str, epochs: Mapping[int, int]) -> RemoteStateClient:
        """Access to what ``PlacedStore`` has under an address: another task manager, or an image."""
        return self._state.image_client(address) or self._network.state_client(stage_index, address, epochs)

    def _tables(
        self, backend: StateBackend, subtask: SubtaskId, stage: Stage, topology: Topology
    ) -> StateTables:
        return StateTables(
            backend,
            self._state_cache_bytes(topology),
            topology.graph.logical.max_parallelism,
            topology.routing[stage.index].groups_of(subtask.subtask_index) if stage.has_groups else None,
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

    def _output_edges(self, subtask: SubtaskId, inbox: Inbox, topology: Topology) -> list[OutputEdge]:
        edges = topology.graph.output_edges(subtask.stage_index)
        return [self._output_edge(subtask, edge, inbox, topology) for edge in edges]

    def _output_edge(self, subtask: SubtaskId, edge: Edge, inbox: Inbox, topology: Topology) -> OutputEdge:
        channels = {
            channel.consumer.subtask_index: self._network.open_channel(
                channel, inbox, topology.locations[channel.consumer]
            )
            for channel in topology.graph.output_channels(subtask, edge)
        }
        table = topology.routing.get(edge.consumer_stage)
        policy = BatchPolicy(
            self._config.batch_size,
            self._config.batch_timeout_ms,
            self._config.in_flight_ms,
            self._config.channel_buffer_bytes,
            self._settings.alignment_timeout_ms,
        )
        combiner = None if edge.combining is None else create_combiner(edge.combining)
        return OutputEdge(edge, channels, policy, table.group_to_subtask if table else None, combiner)

    def _timers(self, graph: PhysicalGraph) -> SubtaskTimers:
        return SubtaskTimers(
            watermark_interval_ms=self._settings.watermark_interval_ms,
            out_of_order_grace_period_ms=self._settings.out_of_order_grace_period_ms,
            idle_timeout_ms=self._settings.idle_timeout_ms,
            state_flush_interval_ms=self._config.state_flush_interval_ms,
            alignment_timeout_ms=self._settings.alignment_timeout_ms,
            batch_timeout_ms=self._config.batch_timeout_ms,
            batch_rows_max=self._config.batch_size,
            gathering=self._network.gathering,
            watermarks_soon=graph.waits_for_event_time,
            watermarks_soon_in_backlogs=graph.keeps_rows_of_inputs,
        )
