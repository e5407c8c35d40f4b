"""The HTTP interface on port 9008: parses and validates, reads views, queues requests. Decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi_swagger import patch_fastapi
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.cors import CORSMiddleware

import weir
from control_plane.composition import ControlPlane
from control_plane.web.actions import add_action_pages
from control_plane.web.diagnosis import add_diagnosis_pages
from control_plane.web.guard import admission
from control_plane.web.headers import HeadersMiddleware
from control_plane.web.page import add_page
from control_plane.web.state_pages import add_state_pages
from control_plane.web.status_views import plan_view, routing_views, status_view
from control_plane.web.views import (
    HealthView,
    PlanView,
    RoutingView,
    StatusView,
)
from weir.config import ControlPlaneConfig
from weir.errors import AddressInUseError
from weir.questions.access import AccessMiddleware, Audit
from weir.questions.guard import Admission, GuardMiddleware
from weir.questions.http_server import QuietServer, http_config, http_tokens, listen
from weir.questions.joined_writes import JoiningProtocol
from weir.questions.methods import HeadMiddleware
from weir.security.tokens import Tokens


def create_app(
    control_plane: ControlPlane,
    registry: CollectorRegistry,
    config: ControlPlaneConfig,
    audit: Audit | None = None,
) -> FastAPI:
    """The application; its handlers run in the control plane's event loop. ``audit``: None: the log only."""
    tokens, audit = http_tokens(), audit or Audit()
    app = FastAPI(
        title="Weir control plane",
        version=weir.__version__,
        description="Status and control of one running job.",
        docs_url=None,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
    )
    # Pages for people without anything from outside: the scripts are served from here.
    patch_fastapi(app, redirect_from_root_to_docs=False)
    _add_error_pages(app)
    # Before the guard, so that it comes after it.
    admitted = admission(config)
    begin = add_state_pages(app, control_plane, registry, admitted).begin
    # What comes before the application sees no tokens.
    app.state.begin = begin if tokens is None else None
    _add_guard(app, config, admitted, tokens, audit)

    live = add_page(app, control_plane)
    app.state.close = live.close

    _add_status_pages(app, control_plane, registry)
    add_action_pages(app, control_plane)
    add_diagnosis_pages(app, control_plane)
    return app


def _add_status_pages(app: FastAPI, control_plane: ControlPlane, registry: CollectorRegistry) -> None:
    @app.get("/healthz", summary="Whether this process answers")
    async def healthz() -> HealthView:
        return HealthView()

    @app.get(
        "/status",
        summary="The job, its stages and subtasks, and the task managers",
        response_model=StatusView,
    )
    async def status() -> Response:
        # It is asked again and again: FastAPI would make dictionaries of it first.
        return Response(status_view(control_plane).model_dump_json(), media_type="application/json")

    @app.get("/plan", summary="The logical and the physical graph")
    async def plan() -> PlanView:
        return plan_view(control_plane.job.graph)

    @app.get("/routing", summary="Routing tables: which subtask owns each key group")
    async def routing() -> list[RoutingView]:
        return routing_views(control_plane.job.routing_tables)

    @app.get(
        "/metrics",
        summary="Prometheus metrics of the control plane",
        response_class=PlainTextResponse,
    )
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


def _add_error_pages(app: FastAPI) -> None:
    """Every refusal is JSON of one form: ``{"error": "..."}``."""

    @app.exception_handler(StarletteHTTPException)
    async def refused(request: Request, error: StarletteHTTPException) -> JSONResponse:
        detail = error.detail
        if error.status_code == 404 and detail == "Not Found":
            known = ", ".join(sorted(app.openapi()["paths"]))
            detail = f"no page {request.url.path}; there are {known}, and /docs for people"
        elif error.status_code == 405 and error.headers:
            right = error.headers["Allow"]
            detail = (
                f"{request.url.path} takes {right}, not {request.method}; with curl: -X {right.split(',')[0]}"
            )
        return JSONResponse({"error": detail}, error.status_code, headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        problems = "; ".join(f"{item['loc'][-1]}: {item['msg']}" for item in error.errors())
        return JSONResponse({"error": problems}, 400)


def _add_guard(
    app: FastAPI, config: ControlPlaneConfig, admitted: Admission, tokens: Tokens | None, audit: Audit
) -> None:
    """Keep other web pages out; those that may come in may also read the answers."""
    if config.allowed_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=config.allowed_origins, allow_methods=["GET", "POST"]
        )
    app.add_middleware(HeadMiddleware)
    app.add_middleware(AccessMiddleware, tokens=tokens, audit=audit)
    # Added last, so that they come first: refusals have the headers, too.
    app.add_middleware(GuardMiddleware, admitted=admitted)
    app.add_middleware(HeadersMiddleware)


class HttpServer:
    """Uvicorn in the control plane's event loop."""

    def __init__(self, app: FastAPI, config: ControlPlaneConfig, *, or_any_port: bool = False) -> None:
        """Listen at once, so that a taken port is found before anything else starts.

        Args:
            app: what answers.
            config: says where.
            or_any_port: take any free port if that one is taken.

        Raises:
            AddressInUseError: the port is taken.
        """
        try:
            self._socket = listen(config.host, config.control_port, or_any_port=or_any_port)
        except OSError as error:
            raise AddressInUseError(
                f"cannot listen on {config.host}:{config.control_port} (HTTP): {error.strerror}; choose another port "
                "with --http-port"
            ) from error
        self.port: int = self._socket.getsockname()[1]
        # Questions for one key are answered before the application, if it has any.
        protocol = partial(
            JoiningProtocol, begin=getattr(app.state, "begin", None), newcomers=self._socket.newcomers
        )
        self._server = QuietServer(http_config(app, protocol, end_s=2))
        #: Ends what else would hold up the end of the server.
        self._close: Callable[[], None] = getattr(app.state, "close", _nothing)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to answer; called inside the event loop."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    async def stop(self) -> None:
        """Finish open requests and stop."""
        self._close()
        self._server.leave()
        if self._task is not None:
            await self._task
        self._socket.close()


def _nothing() -> None:
    """What an application without streams has to end."""
