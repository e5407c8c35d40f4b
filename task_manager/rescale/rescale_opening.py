"""Connects the parts of a job's rescales on this task manager to threads, gRPC and the job's stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial

from task_manager.exchange.inboxes import Inboxes
from task_manager.exchange.peer_network import PeerNetwork
from task_manager.job_stores import JobStores
from task_manager.rescale.cache_copy import CacheCopier
from task_manager.rescale.copy_pace import COPIED_BYTES_MAX, COPY_TIMES, RELINKED_BYTES_MAX, RELINKED_TIMES
from task_manager.rescale.fetching import Fetching
from task_manager.rescale.handovers import Handovers
from task_manager.rescale.ownership_reports import OwnershipReports
from task_manager.rescale.peer_calls import PeerCalls, Shipper
from task_manager.rescale.relink_sender import RelinkSender
from task_manager.rescale.relinking import Relinking
from task_manager.rescale.rescaling import RescaleParticipant
from task_manager.rescale.switching import Switching
from task_manager.subtasks.running import RunningSubtask
from weir import threads
from weir.clock import Clock
from weir.config import StateMove, StateStrategy, TaskManagerConfig
from weir.rpc.wire import JobIdentity
from weir.state.api import StateBackend
from weir.state.placement.migration import Migrator
from weir.types import SubtaskId

_THREADS = 8


def open_rescaling(
    identity: JobIdentity,
    address: str,
    running: Mapping[SubtaskId, RunningSubtask],
    inboxes: Inboxes,
    network: PeerNetwork,
    store: StateBackend,
    config: TaskManagerConfig,
    strategy: StateStrategy,
    on_change: Callable[[], None],
    clock: Clock,
    stores: JobStores | None = None,
) -> RescaleParticipant:
    """Returns a job's part in rescales; ``running`` and ``inboxes`` are the job's own and change.

    ``stores``: of the images that groups are relinked to; None: they are not.
    """
    relinks: tuple[RelinkSender, Relinking] | None = None
    if strategy.relinks and stores is not None:
        sender = RelinkSender(store, network.state_client, clock)
        relinks = sender, Relinking(address, running, stores, partial(_steps_of, inboxes))
    workers = threads.pool(_THREADS, "rescale")
    locations: dict[SubtaskId, str] = {}
    ships = strategy.move is StateMove.SHIPPED
    shipper = Shipper(store, network, config.migration_bytes_per_second, clock)
    # Without a migration the groups are wanted at once, and strategy local ships everything anyway.
    copier = CacheCopier(
        identity,
        address,
        running,
        network,
        locations,
        clock,
        copies=strategy.move is StateMove.FETCHED,
        hurries=not ships,
        bytes_max=RELINKED_BYTES_MAX if strategy.relinks else COPIED_BYTES_MAX,
        times=RELINKED_TIMES if strategy.relinks else COPY_TIMES,
    )
    reports = OwnershipReports(address, on_change)
    handovers = Handovers(
        address,
        running,
        locations,
        PeerCalls(identity, network),
        copier,
        shipper if ships else None,
        reports,
        partial(_submit, workers),
        None if relinks is None else relinks[0],
    )
    migrator = Migrator(config.migration_bytes_per_second, config.migration_chunk_bytes, clock)

    def close() -> None:
        shipper.close()
        workers.shutdown(wait=True, cancel_futures=True)

    return RescaleParticipant(
        address,
        running,
        locations,
        copier,
        Switching(running, inboxes, network),
        handovers,
        Fetching(running, migrator, reports, handovers.fail),
        reports,
        close,
        relinks,
    )


def _steps_of(inboxes: Inboxes) -> dict[int, list[str]]:
    """Names of the steps of each stage."""
    return {stage.index: [node.name for node in stage.nodes] for stage in inboxes.topology.graph.stages}


def _submit(workers: Executor, work: Callable[[], None]) -> None:
    workers.submit(work)
