"""Pages with which a job is changed, and that tell what became of it: cancel, rescales, drains, checkpoints."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query

from control_plane.composition import ControlPlane
from control_plane.web.status_views import status_view
from control_plane.web.views import (
    AcceptedView,
    CheckpointView,
    DrainView,
    ErrorView,
    RescaleAcceptedView,
    RescaleView,
    RestoreView,
)
from weir.protocol.checkpoints.checkpoint_model import CheckpointRecord, CheckpointRefusal
from weir.protocol.rescale.rescale_log import AnyRescale
from weir.protocol.rescale.rescale_plan import RefusalKind, RescaleRefusal

#: What a refused rescale is answered with; everything else is a conflict.
_REFUSALS = {RefusalKind.UNKNOWN_STAGE: 404, RefusalKind.BAD_NUMBER: 400}


def add_action_pages(app: FastAPI, control_plane: ControlPlane) -> None:
    """Add them all."""
    _add_cancel_page(app, control_plane)
    _add_rescale_pages(app, control_plane)
    _add_drain_pages(app, control_plane)
    _add_checkpoint_pages(app, control_plane)
    _add_restore_page(app, control_plane)


def _add_cancel_page(app: FastAPI, control_plane: ControlPlane) -> None:
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
