"""Takes questions to running state: an event loop in a thread of its own, and a few threads for what takes longer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import orjson
from prometheus_client import CollectorRegistry

from task_manager.exchange.sockets import send_at_once
from task_manager.job_slot import JobSlot
from task_manager.priority import REST_S, AnsweringPriority
from task_manager.queries.answers import QUERIES_MAX
from task_manager.queries.directory import FetchedDirectory
from task_manager.queries.question_pages import PageServer, question_pages
from weir.clock import Clock
from weir.config import TaskManagerConfig
from weir.errors import AddressInUseError, WeirError
from weir.metrics import QuestionMetrics
from weir.process.newcomers import Entrance
from weir.protocol.queries import QueryError, Question, question_from_json
from weir.questions.asking import Asking
from weir.questions.guard import Admission, own_hosts
from weir.questions.link import QuestionPlace, new_greeting, serve_links
from weir.questions.pages import StatePages
from weir.rpc import control_pb2
from weir.rpc.frequent_calls import FrequentCall, Handler, answer_to, called
from weir.rpc.wire import JobIdentity, handshake_from_proto
from weir.security.identity import current
from weir.state.tables.cells.cell_table import ChangingError
from weir.types import join_address

log = logging.getLogger(__name__)

#: How long state that is being changed is looked at again, and how often, before its owner's thread is asked.
_LOOK_S = 0.0005
_LOOKS_MAX = 20

#: Sinks that have ended deliver at the end of a checkpoint.
_LONG_CALLS = frozenset({FrequentCall.END_CHECKPOINT})
_CALLS_MAX = 4

#: For the end of the thread: its sockets are closed afterwards.
_STOP_S = 30.0


class DirectoryCalls(Protocol):
    """Of ``task_manager.link.control_calls.GrpcControlCalls``."""

    def directory(self) -> dict[str, Any]:
        """What ``control_plane.directory.directory_json`` returns."""


Answer = tuple[int, dict[str, Any], int]


class _Gone:
    """Whether a caller has gone; a ``threading.Event`` takes longer to make than most answers need it."""

    __slots__ = ("is_set",)

    def __init__(self) -> None:
        self.is_set = False

    def set(self) -> None:
        """Called by the loop; whoever works on the question looks now and then."""
        self.is_set = True


class QuestionServer:
    """One for each process."""

    def __init__(
        self,
        slot: JobSlot,
        calls: DirectoryCalls,
        registry: CollectorRegistry,
        config: TaskManagerConfig,
        clock: Clock,
    ) -> None:
        self._slot = slot
        self._config = config
        self.place = QuestionPlace(0, new_greeting(), calls_greeting=new_greeting())
        #: Take calls of the control plane; set before :meth:`start`.
        self.calls: Mapping[FrequentCall, Handler] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="questions", daemon=True)
        self._priority = AnsweringPriority(config.niceness)
        self._pool = ThreadPoolExecutor(
            QUERIES_MAX, thread_name_prefix="question", initializer=self._priority.begin_thread
        )
        self._callers = ThreadPoolExecutor(_CALLS_MAX, thread_name_prefix="call")
        self._directory = FetchedDirectory(self._identity, calls.directory, clock)
        hosts = own_hosts(config.host, config.advertised_host)
        admitted = Admission(hosts, owner="task manager", hosts_setting="taskManager.advertised_host")
        self._pages = StatePages(Asking(self._directory, QuestionMetrics(registry).observe), admitted)
        self._app = question_pages(self._pages, registry, admitted)
        self._sockets: list[Entrance] = []

    def start(self) -> None:
        """Listen; :attr:`place` says where.

        Raises:
            AddressInUseError: the port of the pages is taken.
        """
        host = self._config.host
        # The one that may be taken comes first.
        pages = _listen(host, self._config.http_port)
        links = _listen(host, 0)
        self._sockets = [links, pages]
        self._loop = asyncio.new_event_loop()
        shown = join_address(self._config.advertised_host or host, pages.getsockname()[1])
        self.place = replace(self.place, port=links.getsockname()[1], http_address=shown)
        self._thread.start()
        log.info("state and metrics at http://%s/state/... and /metrics", shown)

    def stop(self) -> None:
        """Take no more questions."""
        if self._loop is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # The loop was closed since.
                self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(_STOP_S)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._callers.shutdown(wait=False, cancel_futures=True)
        for bound in self._sockets:
            bound.close()

    def _identity(self) -> JobIdentity | None:
        runtime = self._slot.runtime
        return None if runtime is None else runtime.identity

    def _run(self) -> None:
        loop = self._running_loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._serve(*self._sockets))
        finally:
            loop.close()

    async def _serve(self, links: Entrance, pages: Entrance) -> None:
        """Answer until told to stop; it may be told so before this begins."""
        loop = asyncio.get_running_loop()
        takers = {self.place.greeting: self._asked, self.place.calls_greeting: self._called}
        await serve_links(takers, links)
        # What comes before the application sees no tokens.
        begin = self._pages.begin if current().tls is None else None
        PageServer(self._app, begin, pages).begin(loop)
        await self._stopping.wait()
        # Else they are told of on standard error when the process ends.
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def _running_loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "it was started"
        return self._loop

    # --- in the loop ---

    def _asked(self, content: bytes, answer: Callable[[bytes], None]) -> Callable[[], None] | None:
        """A question has come; returns what takes it back."""
        try:
            request = control_pb2.QueryRequest.FromString(content)
            question = question_from_json(orjson.loads(request.question_json))
        except Exception as error:
            answer(_reply((400, {"error": f"malformed question: {error}"}, 0)))
            return None
        gone = _Gone()
        self._look(request, question, answer, gone, 0)
        return gone.set

    def _called(self, frame: bytes, answer: Callable[[bytes], None]) -> None:
        """The control plane makes a call, which is not taken back: it may have had its effect."""
        if called(frame) not in _LONG_CALLS:
            answer(answer_to(frame, self.calls))
            return

        def work() -> None:
            self._running_loop.call_soon_threadsafe(answer, answer_to(frame, self.calls))

        self._callers.submit(work)

    def _look(
        self,
        request: control_pb2.QueryRequest,
        question: Question,
        answer: Callable[[bytes], None],
        gone: _Gone,
        looks: int,
    ) -> None:
        if gone.is_set:
            return
        try:
            found = answered(partial(self._quick, request, question))
        except ChangingError:
            if looks < _LOOKS_MAX:
                self._running_loop.call_later(_LOOK_S, self._look, request, question, answer, gone, looks + 1)
                return
            found = None
        if found is not None:
            answer(_reply(found))
            if self._priority.asked(self._running_loop.time()):
                self._running_loop.call_later(REST_S, self._look_for_rest)
            return

        def work() -> None:
            if gone.is_set:
                # While others were answered.
                return
            reply = _reply(answered(partial(self._slow, request, question, gone)))
            if not gone.is_set:
                self._running_loop.call_soon_threadsafe(answer, reply)

        self._pool.submit(work)

    def _look_for_rest(self) -> None:
        if not self._priority.rested():
            self._running_loop.call_later(REST_S, self._look_for_rest)

    def _quick(self, request: control_pb2.QueryRequest, question: Question) -> Answer | None:
        runtime = self._slot.current(handshake_from_proto(request.handshake))
        return runtime.answers.quick(question, request.state_id)

    def _slow(self, request: control_pb2.QueryRequest, question: Question, gone: _Gone) -> Answer | None:
        runtime = self._slot.current(handshake_from_proto(request.handshake))
        return runtime.answers.answer(
            question, request.state_id, request.manifest_path, lambda: not gone.is_set
        )


def answered(work: Callable[[], Answer | None]) -> Answer | None:
    """What the work returns; refusals and errors as answers.

    Raises:
        ChangingError: the work did.
    """
    try:
        return work()
    except ChangingError:
        raise
    except QueryError as error:
        return error.status, {"error": str(error)}, 0
    except WeirError as error:
        # Another deployment is here, or what is here is being closed.
        return 503, {"error": f"{error}: try again"}, 0
    except (ValueError, TypeError) as error:
        return 400, {"error": f"malformed question: {error}"}, 0
    except Exception as error:
        log.exception("a question could not be answered")
        return 500, {"error": f"{type(error).__name__}: {error}"}, 0


def _reply(answer: Answer | None) -> bytes:
    assert answer is not None
    status, shown, group = answer
    rows = shown.get("rows")
    if isinstance(rows, bytes):
        shown = {name: value for name, value in shown.items() if name != "rows"}
        return control_pb2.QueryReply(
            status=status, answer_json=orjson.dumps(shown), arrow=rows
        ).SerializeToString()
    return control_pb2.QueryReply(
        status=status, answer_json=orjson.dumps(shown), key_group=group
    ).SerializeToString()


def _listen(host: str, port: int) -> Entrance:
    host = host.removeprefix("[").removesuffix("]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise AddressInUseError(
            f"cannot listen on {join_address(host, port)} for questions to state: {error.strerror}; "
            "choose another taskManager.http_port"
        ) from error
    # Connections inherit it: else an answer waits for the caller to acknowledge the one before it, up to 40 ms.
    send_at_once(bound)
    return Entrance(bound)
