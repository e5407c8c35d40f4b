"""Pages that tell what processes do inside: a profile of a stage, and the ends of logs."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request
from pydantic import BaseModel, Field

from control_plane.composition import ControlPlane
from control_plane.watch.profiler import SECONDS, SECONDS_MAX, ProfileRefusal, StageProfile
from control_plane.web.views import ErrorView
from weir.errors import WeirError
from weir.process.log_tail import ENTRIES_MAX
from weir.questions.access import right_of
from weir.security.tokens import Right


class ProfileBoxView(BaseModel):
    """A box of a flame graph; a box lies on the one with a smaller ``depth`` in whose width it is."""

    depth: int
    start: int = Field(description="in samples")
    width: int = Field(description="in samples")
    name: str
    place: str = Field(description="line and file of most of it; empty: it is no function")
    kind: str = Field(description="STEP, JOB (the job's own code), ENGINE, LIBRARY or WAITS")


class ProfileView(BaseModel):
    """What a stage does with its time: where its threads were, each time they were looked at."""

    profile: int
    stage: int
    name: str
    state: str = Field(description="RUNNING, DONE or FAILED")
    cause: str
    seconds: float
    started_ms: int
    subtasks: int
    samples: int = Field(description="looks at a thread")
    words: list[str] = Field(description="where the time goes, the largest part first")
    boxes: list[ProfileBoxView]


class LogView(BaseModel):
    """The end of the log of a process, without credentials and control characters."""

    process: str = Field(description="address of a task manager, or: control plane")
    entries: list[str] = Field(description="oldest first")


#: What is shown if nothing else is asked for.
_ENTRIES = 200
OWN_LOG = "control plane"


def add_diagnosis_pages(app: FastAPI, control_plane: ControlPlane) -> None:
    """Add them all."""
    _add_profile_pages(app, control_plane)
    _add_log_page(app, control_plane)


def _add_profile_pages(app: FastAPI, control_plane: ControlPlane) -> None:
    refusals: dict[int | str, dict[str, Any]] = {
        400: {"model": ErrorView, "description": "a bad number"},
        404: {"model": ErrorView, "description": "no such stage"},
        409: {"model": ErrorView, "description": "none can be made now; the error says why"},
    }

    # It takes a twentieth of the time of the stage's task managers meanwhile, so it is an action.
    @app.post(
        "/profile",
        status_code=202,
        summary="Look for some seconds where a stage spends its time",
        responses=refusals,
    )
    async def profile(
        stage: int,
        seconds: Annotated[float, Query(description=f"at most {SECONDS_MAX:g}")] = SECONDS,
    ) -> ProfileView:
        result = control_plane.profiler.request(stage, seconds)
        if isinstance(result, ProfileRefusal):
            raise HTTPException(result.status, result.message)
        return profile_view(result)

    @app.get(
        "/profile",
        summary="The latest profile of a stage, in words and as a flame graph",
        responses={404: {"model": ErrorView, "description": "none was asked for"}},
    )
    async def latest_profile() -> ProfileView:
        latest = control_plane.profiler.latest
        if latest is None:
            raise HTTPException(404, "no profile was asked for; send POST /profile?stage=3&seconds=10")
        return profile_view(latest)


def _add_log_page(app: FastAPI, control_plane: ControlPlane) -> None:
    @app.get(
        "/logs",
        summary="The last entries of the log of the control plane, or of a task manager",
        responses={
            404: {"model": ErrorView, "description": "no such task manager"},
            503: {"model": ErrorView, "description": "the task manager does not answer"},
        },
    )
    async def logs(
        request: Request,
        task_manager: Annotated[str, Query(description="address; without it the control plane's own")] = "",
        entries: Annotated[int, Query(ge=1, le=ENTRIES_MAX)] = _ENTRIES,
    ) -> LogView:
        tails = control_plane.log_tails
        # These have addresses and requests of others.
        with_audit = right_of(request.scope) >= Right.OPERATE
        if not task_manager:
            return LogView(process=OWN_LOG, entries=list(tails.own(entries, with_audit=with_audit)))
        try:
            found = await tails.of(task_manager, entries, with_audit=with_audit)
            return LogView(process=task_manager, entries=list(found))
        except KeyError:
            known = ", ".join(sorted(control_plane.task_managers.clients)) or "none"
            raise HTTPException(404, f"no task manager {task_manager!r}; there are {known}") from None
        except WeirError as error:
            raise HTTPException(503, str(error)) from error


def profile_view(profile: StageProfile) -> ProfileView:
    """Return what JSON shows of it."""
    return ProfileView.model_validate({**dataclasses.asdict(profile), "profile": profile.number})
