"""The page for people at ``/``: its files, which are in the package, and what it asks for."""

from __future__ import annotations

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, StreamingResponse

from control_plane.composition import ControlPlane
from control_plane.web.configuration import configuration_view
from control_plane.web.live import Live
from control_plane.web.report import page_files, report_html
from control_plane.web.views import ConfigurationView, ErrorView, HistoryView

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def add_page(app: FastAPI, control_plane: ControlPlane) -> Live:
    """Add the page; returns what has to be closed before the server ends."""
    files = page_files()
    live = Live(control_plane)

    def page_file(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, f"the page has no file {name!r}")
        kind = _TYPES[name.rpartition(".")[2]]
        # Asked for anew with each opening: another version of Weir may be at the address.
        return Response(files[name], media_type=kind, headers={"cache-control": "no-cache"})

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return page_file("index.html")

    @app.get("/page/{name}", include_in_schema=False)
    async def part(name: str) -> Response:
        return page_file(name)

    @app.get("/history", summary="Loads of the last hour, and what happened meanwhile")
    async def history() -> HistoryView:
        return HistoryView.model_validate(control_plane.watcher.history.document())

    @app.get("/configuration", summary="Settings of the control plane, without credentials")
    async def configuration() -> ConfigurationView:
        return configuration_view(control_plane)

    @app.get(
        "/report",
        summary="What the page shows, as one HTML file to be kept",
        response_class=HTMLResponse,
    )
    async def report() -> Response:
        name = f'attachment; filename="{control_plane.job.identity.job_id}.html"'
        page = report_html(control_plane, files)
        return HTMLResponse(page, headers={"content-disposition": name, "cache-control": "no-store"})

    @app.get(
        "/live",
        summary="Server-sent events, one a second: what the page shows",
        response_class=StreamingResponse,
        responses={
            200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}},
            503: {"model": ErrorView, "description": "too many pages are open"},
        },
    )
    async def live_events(request: Request) -> Response:
        kind = "text/event-stream"
        if request.scope.get("weir.is_head"):
            return Response(media_type=kind)
        if live.is_full:
            raise HTTPException(503, "too many pages of this job are open; close one")
        return StreamingResponse(live.stream(), media_type=kind, headers={"cache-control": "no-store"})

    return live
