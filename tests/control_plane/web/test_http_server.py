"""Uvicorn in the control plane's loop: it answers, sleeps while nothing comes, and ends at once when it is told to."""

import asyncio
import contextlib
import time
import urllib.request
from email.utils import parsedate_to_datetime

import pytest
from fastapi import FastAPI, Request

from control_plane.web.http import HttpServer
from weir.config import ControlPlaneConfig
from weir.errors import AddressInUseError
from weir.questions import http_server


def test_one_that_is_stopped_at_once_leaves_nothing_open():
    async def test(steps):
        server = HttpServer(FastAPI(), ControlPlaneConfig(control_port=0))
        server.start()
        for _ in range(steps):
            await asyncio.sleep(0)
        await server.stop()
        return server._server.servers

    for steps in (0, 1, 2):
        for listening in asyncio.run(test(steps)):
            assert not listening.is_serving()


def test_it_answers_sleeps_and_ends_at_once(monkeypatch):
    monkeypatch.setattr(http_server, "_DATE_S", 3600.0)

    async def test():
        app = FastAPI()

        @app.get("/here")
        def here(request: Request) -> str:
            return request.client.host

        server = HttpServer(app, ControlPlaneConfig(control_port=0))
        looks, look = [], server._server.on_tick

        async def counted(counter):
            looks.append(time.monotonic())
            return await look(counter)

        server._server.on_tick = counted
        server.start()
        while not looks:
            await asyncio.sleep(0.001)
        pretends = {"X-Forwarded-For": "10.9.9.9"}
        asked = urllib.request.Request(f"http://127.0.0.1:{server.port}/here", headers=pretends)
        with await asyncio.to_thread(urllib.request.urlopen, asked) as reply:
            assert reply.read() == b'"127.0.0.1"'
            assert abs(parsedate_to_datetime(reply.headers["Date"]).timestamp() - time.time()) < 10
        await asyncio.sleep(0.25)
        assert len(looks) == 1, "uvicorn's own loop has looked twice by now"
        # Long before it would look again.
        await server.stop()

    asyncio.run(test())


def test_of_two_only_one_has_a_port_and_the_other_another_one_if_it_may():
    with contextlib.ExitStack() as stack:

        def listening(port, **settings):
            server = HttpServer(FastAPI(), ControlPlaneConfig(control_port=port), **settings)
            # It was not started.
            stack.callback(server._socket.close)
            return server.port

        port = listening(0)
        with pytest.raises(AddressInUseError, match=f"cannot listen on 127.0.0.1:{port}.*--http-port"):
            listening(port)
        assert listening(port, or_any_port=True) not in (0, port)
