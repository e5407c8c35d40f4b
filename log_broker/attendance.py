"""The link from a broker to the controller: reports up, decisions down."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import grpc.aio

from log_broker.broker import Broker
from log_broker.peers import Controllers
from log_broker.waiting import EOF, end, start
from weir.rpc import log_pb2

log = logging.getLogger("log_broker.attendance")

_REPORT_EVERY_S = 0.1
_RETRY_S = 0.2
#: It is told that nobody answers after so many attempts: a controller that is started with its brokers may be later.
_FAILURES_TOLD = 5
#: One of several controllers that is silent for so long may be paused or cut off.
_SILENCE_S = 5.0


class Attendance:
    """Keeps the link; the broker goes on with what it leads while there is none."""

    def __init__(self, broker: Broker, controllers: Controllers, address: str) -> None:
        """Connect nothing yet.

        Args:
            broker: that reports.
            controllers: their addresses; this says which one leads.
            address: where this broker is called by others.
        """
        self._broker = broker
        self._controllers = controllers
        self._address = address
        self._is_told_away = False
        self._failures = 0

    async def run(self) -> None:
        """Report until cancelled; begins again when the link breaks."""
        while True:
            try:
                await self._attend()
            except (grpc.aio.AioRpcError, TimeoutError) as error:
                self._failures += 1
                if not self._is_told_away and self._failures >= _FAILURES_TOLD:
                    why = error.details() if isinstance(error, grpc.aio.AioRpcError) else "it is silent"
                    log.warning("the controller at %s does not answer: %s", self._controllers.current, why)
                    self._is_told_away = True
            self._controllers.turn()
            await asyncio.sleep(_RETRY_S)

    async def _attend(self) -> None:
        call = self._broker.peers.controller(self._controllers.current).Attend()
        silence_s = _SILENCE_S if self._controllers.are_several else None
        reports = start(self._report(call), "reports")
        try:
            while (view := await asyncio.wait_for(call.read(), silence_s)) is not EOF:
                if self._is_told_away:
                    log.info("the controller at %s answers again", self._controllers.current)
                self._is_told_away, self._failures = False, 0
                self._broker.apply(view)
        finally:
            call.cancel()
            await end(reports)

    async def _report(self, call: Any) -> None:
        number = 0
        news = self._broker.news
        while True:
            news.clear()
            number += 1
            await call.write(
                log_pb2.BrokerReport(
                    broker_id=self._broker.broker_id,
                    address=self._address,
                    number=number,
                    replicas=self._broker.reports(),
                )
            )
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(news.wait(), _REPORT_EVERY_S)
