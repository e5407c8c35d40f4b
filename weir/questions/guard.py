"""Who may talk to the HTTP interface: a browser sends the user's requests, but also those of any page that is open.

Two things keep other pages out. The name in ``Host`` must be one of the process's, so that a page whose own name
was made to lead here (DNS rebinding) reads nothing. A request that changes something, and comes from a browser, must
come from the control plane's own pages. ``curl`` and other programs send neither ``Origin`` nor ``Sec-Fetch-Site``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from weir.types import is_wildcard

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
#: Pages that change something although they are asked for with GET.
CHANGING_PATHS = frozenset({"/scale"})
#: What a browser says of a request that a page of ours, or the user's own address bar, caused.
_OWN_SITES = frozenset({"same-origin", "none"})
_REFUSED_CODE = 403
_ANY = "*"
_SHOWN_CHARACTERS_MAX = 80


@dataclass(frozen=True, slots=True)
class Admission:
    """The allow-lists; hosts are in small letters and without brackets or ports."""

    hosts: frozenset[str]
    origins: frozenset[str] = frozenset()
    #: Whose pages these are, and the settings that add to the lists.
    owner: str = "control plane"
    hosts_setting: str = "controlPlane.allowed_hosts"

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> str:
        """Why a request is refused; "": it is not. Header names are in small letters."""
        return self._host_refusal(headers.get("host", "")) or self._origin_refusal(method, path, headers)

    def _host_refusal(self, host: str) -> str:
        if _ANY in self.hosts or _host_name(host) in self.hosts:
            return ""
        return (
            f"the request is for host {_shown(host)}, which is not one of the {self.owner}'s names; if it is, add it "
            f"to {self.hosts_setting}"
        )

    def _origin_refusal(self, method: str, path: str, headers: Mapping[str, str]) -> str:
        origin = headers.get("origin")
        if origin is not None:
            if origin in self.origins or _ANY in self.origins or _is_own(origin, headers):
                return ""
            return (
                f"the request comes from a page of {_shown(origin)}, which may not ask here; if it may, add it to "
                "controlPlane.allowed_origins"
            )
        if method in _SAFE_METHODS and path.rstrip("/") not in CHANGING_PATHS:
            # Browsers do not let another page read the answer.
            return ""
        if _is_from_a_foreign_page(headers):
            return (
                "the request changes something and comes from a browser, but from no page of the control plane; use "
                "/docs or curl, or add the page's origin to controlPlane.allowed_origins and ask with POST"
            )
        return ""


def own_hosts(*names: str) -> frozenset[str]:
    """Names of this machine for itself, and these, as far as they are names."""
    hosts = {*_LOCAL_HOSTS, *(host for host in names if host and not is_wildcard(host))}
    return frozenset(host.strip("[]").lower() for host in hosts)


class GuardMiddleware:
    """Answers what is refused with 403 and ``{"error": ...}``; everything else goes on to the application."""

    def __init__(self, app: ASGIApp, admitted: Admission) -> None:
        self._app = app
        self._admitted = admitted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Called by the server for every request."""
        if scope["type"] in ("http", "websocket"):
            refusal = self._admitted.refusal(scope.get("method", "GET"), scope["path"], Headers(scope=scope))
            if refusal:
                await JSONResponse({"error": refusal}, _REFUSED_CODE)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _host_name(host: str) -> str | None:
    """The name in a ``Host`` header in small letters; None: the header has another form."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # raises if it is no number
    except ValueError:
        return None
    if parts.netloc != host or "@" in host:
        return None
    return parts.hostname


def _is_own(origin: str, headers: Mapping[str, str]) -> bool:
    """Return whether a page of this very server asks: it has the address under which the browser reached us."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == headers.get("host", "").lower()


def _is_from_a_foreign_page(headers: Mapping[str, str]) -> bool:
    """Return whether a request without ``Origin`` was caused by a page that is not ours, as an image's address can."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in _OWN_SITES
    # Over plain HTTP to other machines browsers do not send Sec-Fetch-Site.
    if not headers.get("user-agent", "").startswith("Mozilla/"):
        return False
    return not _is_own(headers.get("referer", ""), headers)


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS_MAX else text[:_SHOWN_CHARACTERS_MAX] + "...")
