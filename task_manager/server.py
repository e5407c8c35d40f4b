"""The gRPC server of a task manager: deployments from the control plane, channels and state from peers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc

from task_manager.exchange.exchange_service import ExchangeService
from task_manager.job_slot import JobSlot
from task_manager.services.control_service import ControlService
from task_manager.services.question_server import QuestionServer
from task_manager.state.state_service import StateService
from weir.clock import Clock
from weir.config import TaskManagerConfig
from weir.errors import (
    AddressInUseError,
)
from weir.rpc import control_pb2_grpc, state_pb2_grpc
from weir.rpc.access import SERVER_OPTIONS, Gate, add_port, threaded_gates
from weir.rpc.wire import (
    message_size_options,
)
from weir.types import join_address

#: Threads of the gRPC server, made on demand.
_SERVER_THREADS_MAX = 4096


class TaskManagerServer:
    """Listens for one process; what it is asked goes to the slot of the job."""

    def __init__(
        self, config: TaskManagerConfig, slot: JobSlot, clock: Clock, questions: QuestionServer
    ) -> None:
        self._config = config
        self._slot = slot
        gate = self._gate = Gate(orders=slot.orders_secret)
        self._server = grpc.server(
            ThreadPoolExecutor(_SERVER_THREADS_MAX, thread_name_prefix="grpc"),
            interceptors=threaded_gates(gate),
            options=[*SERVER_OPTIONS, *message_size_options(config.message_bytes_max)],
        )
        self._questions = questions
        service = ControlService(slot, config.operator_quota, lambda: questions.place, gate)
        control_pb2_grpc.add_TaskManagerServicer_to_server(service, self._server)
        questions.calls = service.frequent_calls
        self._exchange = ExchangeService(slot.find_inbox, config.message_bytes_max, clock)
        self._exchange.add_to(self._server)
        state_pb2_grpc.add_StateServicer_to_server(StateService(slot.find_store), self._server)

    def start(self) -> str:
        """Listen; returns the address under which this task manager is known.

        Raises:
            AddressInUseError: the port is taken, or that for rows; nothing listens then.
        """
        try:
            return self._listen()
        except BaseException:
            self._questions.stop()
            self._exchange.close()
            raise

    def _listen(self) -> str:
        section = self._config
        self._exchange.listen(section.host, section.exchange_port, is_local=section.unix_sockets)
        self._questions.start()
        bound = join_address(section.host, section.tm_port)
        try:
            port = add_port(self._server, bound, self._gate)
        except RuntimeError as error:
            raise AddressInUseError(
                f"cannot listen on {bound}: the port is in use or the address is not this machine's; "
                "choose another with --port"
            ) from error
        self._slot.address = join_address(section.advertised_host or section.host, port)
        self._server.start()
        return self._slot.address

    def stop(self) -> None:
        """Cancel the job, release the store and stop listening."""
        self._questions.stop()
        self._slot.drop_job()
        self._exchange.close()
        self._server.stop(grace=0.5).wait()
