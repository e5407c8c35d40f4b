"""A session with the database for all of a process, in its own thread: the client is asyncio over a C++ driver.

Callers block; the number of requests in flight is bounded for all of them together. What fails and may succeed later
is tried again, with growing pauses.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as WaitedError
from typing import Any, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_never, wait_random_exponential

from weir.clock import Clock, SystemClock
from weir.config.stores import CassandraConfig
from weir.errors import StateError
from weir.state import patience, waits
from weir.state.cassandra.client import Client, local_statement, make_client, schema_statement
from weir.state.cassandra.errors import DatabaseAwayError, Untyped, away, look_at, told

log = logging.getLogger(__name__)

Result = TypeVar("Result")
#: Makes a statement anew for each attempt.
MakeStatement = Callable[[], Untyped]
#: Raises when the caller is to stop.
CheckCancelled = Callable[[], None]

_PAUSE_S, _PAUSE_S_MAX = 0.05, 2.0
#: Between two looks whether a caller that waits is to stop.
_LOOK_S = 0.2
#: A request that takes longer is told of, as often as this at most.
_SLOW_S, _TOLD_EVERY_S = 1.0, 10.0
#: How long closing waits; what is in flight ends later by itself, with its time-out.
_CLOSE_S = 2.0


def never_cancelled() -> None:
    """A ``CheckCancelled`` of whoever is not stopped."""


class Session:
    """Made by :func:`open_session`. Methods may be called from any thread, and block."""

    def __init__(self, settings: CassandraConfig, clock: Clock) -> None:
        self.settings = settings
        self._clock = clock
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="cassandra", daemon=True)
        #: Monotonic, s: since when the database does not answer; 0: it does.
        self._away_since_s = 0.0
        self._away_because = ""
        #: Held while work is given to the thread, and while it is told to end: it does all that was given before.
        self._submitting = threading.Lock()
        self._closed = False
        self._client: Client | None = None
        self._session: Untyped = None
        #: The latest attempt to connect; never cancelled, see :meth:`_create_session`.
        self._connecting: asyncio.Future[Untyped] | None = None
        self._prepared: dict[str, Untyped] = {}
        self._slots = asyncio.Semaphore(settings.requests_in_flight_max)
        #: Requests that were tried again, since the start.
        self.retries = 0
        #: Requests that were answered since the start, and how long all of them took; some are in flight together.
        self.requests, self.requests_s = 0, 0.0
        self._told_slow_s = -_TOLD_EVERY_S
        self._thread.start()

    @property
    def away_s(self) -> float:
        """Return for how long the database has not answered; 0: it answers."""
        since_s = self._away_since_s
        return self._clock.monotonic_s() - since_s if since_s else 0.0

    @property
    def away_because(self) -> str:
        """What the last attempt failed with, while the database does not answer."""
        return self._away_because

    @property
    def why_away(self) -> str:
        """Say that the database does not answer, and what it said, in one line; empty: it answers."""
        because = self._away_because
        since = f", for {self.away_s:.0f} s so far" if self.away_s else ""
        return because and f"Cassandra at {self.settings.address} does not answer ({because}){since}"

    def connect(self, check_cancelled: CheckCancelled = never_cancelled) -> None:
        """Connect, and wait for the database as the settings say.

        Raises:
            StateError: it cannot be reached (with ``fail``), or refuses the user.
        """
        self.run(self._connect(), check_cancelled)

    def run(
        self, work: Coroutine[Any, Any, Result], check_cancelled: CheckCancelled = never_cancelled
    ) -> Result:
        """Run a coroutine in the session's thread and wait for it; ``check_cancelled`` is asked meanwhile.

        So is the caller's ``weir.state.patience``, if it has a limited one.

        Raises:
            StateError: the session is closed, or what the coroutine raises.
        """
        return self.wait(self.begin(work), check_cancelled)

    def begin(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Run a coroutine in the session's thread; :meth:`wait` has what it returns, or nobody wants it any more.

        Raises:
            StateError: the session is closed.
        """
        with self._submitting:
            if self._closed:
                work.close()
                raise self._is_closed()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, running: Future[Result], check_cancelled: CheckCancelled = never_cancelled) -> Result:
        """What began with :meth:`begin`; see :meth:`run`."""
        began_s = self._clock.monotonic_s()
        try:
            return self._wait(running, check_cancelled)
        finally:
            waits.of_thread.seconds += self._clock.monotonic_s() - began_s

    def _wait(self, running: Future[Result], check_cancelled: CheckCancelled) -> Result:
        limit = patience.current()
        while True:
            try:
                return running.result(_LOOK_S)
            except CancelledError:
                # Nobody else cancels it.
                raise self._is_closed() from None
            except WaitedError:
                if running.done():
                    return running.result()
            try:
                self._check(check_cancelled)
                if limit is not None:
                    limit(self.why_away)
                if self._closed:
                    raise self._is_closed()
            except BaseException:
                running.cancel()
                raise

    def close(self) -> None:
        """Give up what waits, and disconnect; safe to call twice.

        Requests in flight end first. When the database does not answer, this call does not wait for their time-out, and
        the thread ends later.
        """
        with self._submitting:
            if self._closed:
                return
            self._closed = True
            asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            log.debug("the session with Cassandra at %s ends when its requests do", self.settings.address)

    def _check(self, check_cancelled: CheckCancelled) -> None:
        try:
            check_cancelled()
        except DatabaseAwayError as error:
            # Whoever gives up does not know what was tried.
            because = self._away_because
            text = f"{error} (it said: {because})" if because else str(error)
            raise away(text, is_final=self._gives_up) from None

    @property
    def _gives_up(self) -> bool:
        """Return whether a database that is away ends jobs."""
        return self.settings.when_away == "fail"

    def _is_closed(self) -> StateError:
        return StateError(f"the session with Cassandra at {self.settings.address} is closed")

    def _serve(self) -> None:
        """The thread: it serves until it is told to end, and leaves nothing open."""
        self._loop.run_forever()
        # The driver's threads end with the last reference to its session, and only then may their sockets be closed.
        self._prepared.clear()
        self._session = None
        self._loop.close()
        if self._client is not None:
            self._client.close()

    async def _end(self) -> None:
        waiting = asyncio.all_tasks() - {asyncio.current_task(), self._connecting}
        for task in waiting:
            task.cancel()
        try:
            await asyncio.gather(*waiting, return_exceptions=True)
            if self._session is None and self._connecting is not None:
                self._session = await self._connecting
            if self._session is not None:
                await self._session.close()
        except Exception as error:
            log.debug("closing the session with Cassandra: %s", error)
        finally:
            self._loop.stop()

    # --- in the session's thread -----------------------------------------------------------------------------

    async def prepare(self, text: str) -> Untyped:
        """A prepared statement, made once."""
        if text not in self._prepared:
            self._prepared[text] = await self._attempt(
                lambda: self._session.create_prepared(text), f"prepare {text.split(' WHERE')[0]!r}"
            )
        return self._prepared[text]

    async def execute(self, make: MakeStatement, doing: str) -> Untyped:
        """The result of a statement; ``doing`` completes "cannot ..." in messages."""
        async with self._slots:
            return await self._timed(lambda: self._session.execute(make()), doing)

    async def execute_batch(self, make: MakeStatement, doing: str) -> None:
        """Execute a batch of writes."""
        async with self._slots:
            await self._timed(lambda: self._session.execute_batch(make()), doing)

    async def execute_schema(self, text: str, doing: str = "change the schema", mend: str = "") -> None:
        """Change the schema, with the profile for that; ``mend``: what to do if the database refuses the statement."""
        timeout_s = self.settings.ddl_timeout_ms / 1e3
        await self._attempt(lambda: self._session.execute(schema_statement(text, timeout_s)), doing, mend)

    async def read_schema(self, text: str) -> Untyped:
        """Rows of the system's tables, which each node has for itself."""
        return await self._attempt(
            lambda: self._session.execute(local_statement(text)), "read its system_schema"
        )

    async def gather(self, work: Sequence[Callable[[], Awaitable[None]]]) -> None:
        """Run many requests; no more tasks than may be in flight, since a task costs as much as a request."""
        waiting = iter(work)

        async def take() -> None:
            for each in waiting:
                await each()

        count = min(len(work), self.settings.requests_in_flight_max)
        if count == 1:
            await take()
            return
        tasks = [asyncio.ensure_future(take()) for _ in range(count)]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            raise

    async def _connect(self) -> None:
        self._client = make_client(self.settings)
        self._session = await self._attempt(self._create_session, "connect")

    async def _create_session(self) -> Untyped:
        """Connect; an attempt that nobody waits for any more goes on until it succeeds or fails.

        Else the driver's session is freed while it connects: it waits for a thread that wants the GIL, which it holds,
        and the process stands still for ever.
        """
        assert self._client is not None
        self._connecting = asyncio.ensure_future(self._client.cluster.create_session())
        return await asyncio.shield(self._connecting)

    async def _timed(self, call: Callable[[], Awaitable[Result]], doing: str) -> Result:
        """Do :meth:`_attempt`; a database that is only slow is told of, too, since rows wait for it."""
        began_s = self._clock.monotonic_s()
        retries = self.retries
        result = await self._attempt(call, doing)
        now_s = self._clock.monotonic_s()
        self.requests += 1
        self.requests_s += now_s - began_s
        # What was tried again has been told.
        is_slow = now_s - began_s >= _SLOW_S and self.retries == retries
        if is_slow and now_s - self._told_slow_s >= _TOLD_EVERY_S:
            self._told_slow_s = now_s
            log.warning(
                "Cassandra at %s is slow: to %s took it %.1f s; rows wait for it",
                self.settings.address,
                doing,
                now_s - began_s,
            )
        return result

    async def _attempt(self, call: Callable[[], Awaitable[Result]], doing: str, mend: str = "") -> Result:
        """Call until it succeeds, fails for good, or has been tried long enough."""
        began_s = self._clock.monotonic_s()

        def is_worth_it(error: BaseException) -> bool:
            if isinstance(error, StateError | asyncio.CancelledError) or not isinstance(error, Exception):
                return False
            failure = look_at(error)
            if not failure.is_passing or self._closed:
                return False
            if not self._gives_up:
                return True
            return self._clock.monotonic_s() - began_s < self.settings.give_up_after_ms / 1e3

        def note(state: RetryCallState) -> None:
            assert state.outcome is not None
            self._note_away(look_at(state.outcome.exception() or Exception()).reason, doing)

        async def again() -> Result:
            # The library awaits coroutine functions only, and takes what others return as it is.
            return await call()

        try:
            result = await call()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if not is_worth_it(error):
                raise self._told(error, doing, mend) from error
            self._note_away(look_at(error).reason, doing)
            await asyncio.sleep(_PAUSE_S)
            attempts = AsyncRetrying(
                retry=retry_if_exception(is_worth_it),
                wait=wait_random_exponential(_PAUSE_S, _PAUSE_S_MAX),
                stop=stop_never,
                before_sleep=note,
                reraise=True,
            )
            try:
                result = await attempts(again)
            except Exception as later:
                raise self._told(later, doing, mend) from later
        if self._away_since_s:
            log.info("Cassandra at %s answers again, after %.1f s", self.settings.address, self.away_s)
            self._away_since_s, self._away_because = 0.0, ""
        return result

    def _told(self, error: Exception, doing: str, mend: str) -> StateError:
        return told(look_at(error), self.settings.address, doing, mend, is_final=self._gives_up)

    def _note_away(self, reason: str, doing: str) -> None:
        self.retries += 1
        self._away_because = reason
        if not self._away_since_s:
            self._away_since_s = self._clock.monotonic_s()
            log.warning(
                "Cassandra at %s cannot %s: %s; trying again, rows wait", self.settings.address, doing, reason
            )


_lock = threading.Lock()
#: Sessions of this process, with the number of those who use each.
_sessions: dict[CassandraConfig, tuple[Session, int]] = {}


def open_session(
    settings: CassandraConfig,
    clock: Clock | None = None,
    check_cancelled: CheckCancelled = never_cancelled,
) -> Session:
    """The process's session with a database; the caller gives it back with :func:`leave_session`.

    Raises:
        StateError: the database refuses the user, or cannot be reached (with ``when_away`` ``fail``).
    """
    with _lock:
        session, users = _sessions.get(settings, (None, 0))
        if session is None:
            session = Session(settings, clock or SystemClock())
            try:
                session.connect(check_cancelled)
            except BaseException:
                session.close()
                raise
        _sessions[settings] = session, users + 1
        return session


def leave_session(session: Session) -> None:
    """The caller needs it no longer; the last one closes it."""
    with _lock:
        known, users = _sessions.get(session.settings, (None, 0))
        if known is not session:
            return
        if users > 1:
            _sessions[session.settings] = session, users - 1
            return
        del _sessions[session.settings]
    session.close()


def is_away(error: BaseException) -> bool:
    """Return whether an error says that the database may answer later."""
    return isinstance(error, DatabaseAwayError)
