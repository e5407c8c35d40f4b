"""The link from a broker to the controller: reports up, decisions down."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import grpc.aio

from log_broker.broker import Broker
from log_broker.waiting import EOF, end, start
from weir.rpc import log_pb2

log = logging.getLogger("log_broker.attendance")

_REPORT_EVERY_S = 0.1
_RETRY_S = 0.2


class Attendance:
    """Keeps the link; the broker goes on with what it leads while there is none."""

    def __init__(self, broker: Broker, controller: str, address: str) -> None:
        """Connect nothing yet.

        Args:
            broker: that reports.
            controller: its address.
            address: where this broker is called by others.
        """
        self._broker = broker
        self._controller = controller
        self._address = address
        self._is_told_away = False

    async def run(self) -> None:
        """Report until cancelled; begins again when the link breaks."""
        while True:
            try:
                await self._attend()
            except grpc.aio.AioRpcError as error:
                if not self._is_told_away:
                    log.warning("the controller at %s does not answer: %s", self._controller, error.details())
                self._is_told_away = True
            await asyncio.sleep(_RETRY_S)

    async def _attend(self) -> None:
        call = self._broker.peers.controller(self._controller).Attend()
        reports = start(self._report(call), "reports")
        try:
            while (view := await call.read()) is not EOF:
                if self._is_told_away:
                    log.info("the controller at %s answers again", self._controller)
                self._is_told_away = False
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
