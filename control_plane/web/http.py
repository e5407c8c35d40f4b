"""The HTTP interface on port 9008: parses and validates, reads views, queues requests. Decides nothing."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi_swagger import patch_fastapi
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.cors import CORSMiddleware

import weir
from control_plane.composition import ControlPlane
from control_plane.web.guard import admission
from control_plane.web.headers import HeadersMiddleware
from control_plane.web.page import add_page
from control_plane.web.state_pages import add_state_pages
from control_plane.web.status_views import plan_view, routing_views, status_view
from control_plane.web.views import (
    AcceptedView,
    CheckpointView,
    DrainView,
    ErrorView,
    HealthView,
    PlanView,
    RescaleAcceptedView,
    RescaleView,
    RestoreView,
    RoutingView,
    StatusView,
)
from weir.config import ControlPlaneConfig
from weir.errors import AddressInUseError
from weir.protocol.checkpoints.checkpoint_model import CheckpointRecord, CheckpointRefusal
from weir.protocol.rescale.rescale_log import AnyRescale
from weir.protocol.rescale.rescale_plan import RefusalKind, RescaleRefusal
from weir.questions.access import AccessMiddleware, Audit
from weir.questions.guard import Admission, GuardMiddleware
from weir.questions.http_server import QuietServer, encrypt, http_tokens, listen
from weir.questions.joined_writes import JoiningProtocol
from weir.questions.methods import HeadMiddleware
from weir.questions.silent_connections import BACKLOG
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

    @app.post(
        "/cancel",
        status_code=202,
        summary="Stop the job",
        responses={409: {"model": ErrorView, "description": "the job has ended"}},
    )
    async def cancel() -> AcceptedView:
        if not control_plane.coordinator.cancel():
            raise HTTPException(409, f"the job has ended already: {status_view(control_plane).state}")
        return AcceptedView(accepted=True, state=status_view(control_plane).state)

    _add_rescale_pages(app, control_plane)
    _add_drain_pages(app, control_plane)
    _add_checkpoint_pages(app, control_plane)
    _add_restore_page(app, control_plane)
    return app


#: What a refused rescale is answered with; everything else is a conflict.
_REFUSALS = {RefusalKind.UNKNOWN_STAGE: 404, RefusalKind.BAD_NUMBER: 400}


def _add_rescale_pages(app: FastAPI, control_plane: ControlPlane) -> None:
    refusals: dict[int | str, dict[str, Any]] = {
        400: {"model": ErrorView, "description": "a bad number"},
        404: {"model": ErrorView, "description": "no such stage"},
        409: {"model": ErrorView, "description": "it cannot be scaled now; the error says why"},
    }

    # GET too, because that is how it has always been asked for; only POST can say how many.
    @app.get("/scale", status_code=202, summary="One more subtask for a stage", responses=refusals)
    async def scale_out(
        stage: int, parallelism: Annotated[str, Query(include_in_schema=False)] = ""
    ) -> RescaleAcceptedView:
        if parallelism:
            # One more, whatever was asked for, would be a surprise.
            raise HTTPException(
                400,
                f"GET adds one subtask: for {parallelism} send POST /scale?stage={stage}&parallelism={parallelism}",
            )
        return _accepted(control_plane.rescaler.request(stage, None))

    @app.post("/scale", status_code=202, summary="More or fewer subtasks for a stage", responses=refusals)
    async def scale(stage: int, parallelism: int | None = None) -> RescaleAcceptedView:
        return _accepted(control_plane.rescaler.request(stage, parallelism))

    @app.get("/rescales", summary="The latest rescales, newest first")
    async def rescales() -> list[RescaleView]:
        # Whoever sees a rescale ended may count on it, whatever happens to this process.
        await control_plane.record.saved()
        return [RescaleView.model_validate(item) for item in control_plane.rescaler.log.to_list()]

    @app.get(
        "/rescales/{rescale_id}",
        summary="One rescale: phases, groups and bytes moved",
        responses={404: {"model": ErrorView, "description": "no such rescale"}},
    )
    async def rescale(rescale_id: int) -> RescaleView:
        await control_plane.record.saved()
        found = control_plane.rescaler.log.report(rescale_id)
        if found is None:
            known = [str(item["id"]) for item in control_plane.rescaler.log.to_list()]
            raise HTTPException(404, f"no rescale {rescale_id}; there are {', '.join(known) or 'none'}")
        return RescaleView.model_validate(found)


def _add_drain_pages(app: FastAPI, control_plane: ControlPlane) -> None:
    @app.post(
        "/drain",
        status_code=202,
        summary="Move everything away from a task manager, so that it can be stopped",
        responses={
            404: {"model": ErrorView, "description": "no such task manager"},
            409: {"model": ErrorView, "description": "something on it cannot be moved"},
        },
    )
    async def drain(task_manager: str) -> DrainView:
        result = control_plane.drainer.request(task_manager)
        if isinstance(result, RescaleRefusal):
            raise HTTPException(_REFUSALS.get(result.kind, 409), result.message)
        return DrainView(**dataclasses.asdict(result))

    @app.get("/drains", summary="Task managers that are being emptied")
    async def drains() -> list[DrainView]:
        return [DrainView(**dataclasses.asdict(item)) for item in control_plane.drainer.drains.values()]


def _add_checkpoint_pages(app: FastAPI, control_plane: ControlPlane) -> None:
    refusals: dict[int | str, dict[str, Any]] = {
        409: {"model": ErrorView, "description": "none can be made now; the error says why"}
    }

    def accepted(result: CheckpointRecord | CheckpointRefusal) -> CheckpointView:
        if isinstance(result, CheckpointRefusal):
            raise HTTPException(403 if result.is_forbidden else 409, result.message)
        return control_plane.checkpointer.view(result)

    @app.post("/checkpoints", status_code=202, summary="Make a checkpoint now", responses=refusals)
    async def checkpoint() -> CheckpointView:
        return accepted(control_plane.checkpointer.request())

    @app.post(
        "/stop",
        status_code=202,
        summary="Stop the job with a savepoint: nothing is delivered that it does not cover",
        responses=refusals,
    )
    async def stop(savepoint: Annotated[str, Query(min_length=1)]) -> CheckpointView:
        return accepted(control_plane.checkpointer.request(savepoint, stops_job=True))

    @app.get("/checkpoints", summary="The latest checkpoints and savepoints, newest first")
    async def checkpoints() -> list[CheckpointView]:
        checkpointer = control_plane.checkpointer
        return [checkpointer.view(record) for record in checkpointer.machine.records]

    @app.post(
        "/savepoint",
        status_code=202,
        summary="Make a savepoint: a checkpoint that is kept, at a path of its own",
        responses={
            **refusals,
            403: {"model": ErrorView, "description": "the path is not below a savepoint root"},
        },
    )
    async def savepoint(path: Annotated[str, Query(min_length=1)]) -> CheckpointView:
        return accepted(control_plane.checkpointer.request(path))


def _add_restore_page(app: FastAPI, control_plane: ControlPlane) -> None:
    @app.get("/restores", summary="The latest restores of subtasks, newest first")
    async def restores() -> list[RestoreView]:
        return control_plane.restores.views()


def _accepted(result: AnyRescale | RescaleRefusal) -> RescaleAcceptedView:
    if isinstance(result, RescaleRefusal):
        raise HTTPException(_REFUSALS.get(result.kind, 409), result.message)
    return RescaleAcceptedView(rescale=result.rescale_id, url=f"/rescales/{result.rescale_id}")


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
        self._server = QuietServer(
            uvicorn.Config(
                app,
                # Questions for one key are answered before the application, if it has any.
                http=partial(JoiningProtocol, begin=getattr(app.state, "begin", None)),  # type: ignore[arg-type]
                log_level="warning",
                # As all of this process: bounded, and without control characters.
                log_config=None,
                lifespan="off",
                access_log=False,
                backlog=BACKLOG,
                timeout_graceful_shutdown=2,
            )
        )
        encrypt(self._server.config)
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
