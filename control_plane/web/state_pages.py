"""``/state/{step}/{state}`` and ``/state/{step}/{state}/{key}``: questions to running state."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Response
from prometheus_client import CollectorRegistry

from control_plane.composition import ControlPlane
from control_plane.directory import OwnDirectory
from control_plane.web.views import AskableView, ErrorView, StateKeyView, StatePageView
from weir.metrics import QuestionMetrics
from weir.questions.asking import Asking
from weir.questions.guard import Admission
from weir.questions.pages import StatePages

_PARAMETERS: list[dict[str, Any]] = [
    {"name": name, "in": "query", "required": False, "description": text, "schema": {"type": kind}}
    for name, kind, text in (
        ("consistency", "string", "latest or checkpoint; unless told, latest for one key, else checkpoint"),
        ("from", "string", "keys from here, or below a key times or map keys; inclusive"),
        ("to", "string", "up to here; inclusive"),
        ("prefix", "string", "keys that begin so"),
        ("reverse", "boolean", "the last one first"),
        (
            "limit",
            "integer",
            "rows of a page, at most 10000 (100000 in Arrow); below a key its first entries",
        ),
        ("as_of", "integer", "of a versioned state: the value that was in force at this time, ms"),
        (
            "time_from",
            "integer",
            "of versions, windows and sessions of all keys: from this time on, ms; inclusive",
        ),
        ("time_to", "integer", "up to this time, ms; inclusive"),
        ("count", "boolean", "only how many keys there are; reads all of them"),
        ("continuation", "string", "the next page of an answer that had this"),
        ("min_checkpoint", "integer", "as of this checkpoint or a later one, which is waited for; else 503"),
    )
]
_ANSWER: dict[int | str, dict[str, Any]] = {200: {"model": StateKeyView}}
_PAGE: dict[int | str, dict[str, Any]] = {200: {"model": StatePageView}}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorView, "description": "the question is malformed"},
    404: {"model": ErrorView, "description": "no such step, state or key"},
    409: {"model": ErrorView, "description": "the job is over"},
    410: {"model": ErrorView, "description": "the checkpoint of the continuation is not open any more"},
    413: {
        "model": ErrorView,
        "description": "there is more than an answer may have: ask for less, or give limit",
    },
    429: {"model": ErrorView, "description": "too many questions are being answered"},
    503: {
        "model": ErrorView,
        "description": "not now (a rescale, a restart); the error says why",
    },
    504: {"model": ErrorView, "description": "it takes longer than a question may: ask for less"},
}


def add_state_pages(
    app: FastAPI, control_plane: ControlPlane, registry: CollectorRegistry, admitted: Admission
) -> StatePages:
    """Add the pages: to the document; what answers is :class:`StatePages`, which takes a quarter of the time."""
    pages = StatePages(Asking(OwnDirectory(control_plane), QuestionMetrics(registry).observe), admitted)
    more = {"parameters": _PARAMETERS}

    @app.get("/state", summary="Steps and states that can be asked", responses=_REFUSALS)
    async def listed() -> AskableView:
        raise AssertionError("answered before it comes here")

    @app.get("/state/{step}", summary="States of a step that can be asked", responses=_REFUSALS)
    async def listed_of(step: str) -> AskableView:
        raise AssertionError("answered before it comes here")

    @app.get(
        "/state/{step}/{state}/{key:path}",
        summary="What a state has for a key",
        responses=_ANSWER | _REFUSALS,
        openapi_extra=more,
    )
    async def one(step: str, state: str, key: str) -> Response:
        raise AssertionError("answered before it comes here")

    @app.get(
        "/state/{step}/{state}",
        summary="Keys of a state, a page",
        responses=_PAGE | _REFUSALS,
        openapi_extra=more,
    )
    async def several(step: str, state: str) -> Response:
        raise AssertionError("answered before it comes here")

    app.add_middleware(pages.before)
    return pages
