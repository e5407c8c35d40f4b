"""Fetches the report of a job: ``weir.report("localhost:9008", "run.html")``."""

from __future__ import annotations

import http.client
from pathlib import Path

from weir.errors import ConnectionLostError
from weir.questions.client import AskError, place_of
from weir.questions.https import open_connection, token_headers

_TIMEOUT_S = 30.0


def report(address: str = "localhost:9008", path: str | Path = "report.html") -> Path:
    """Write what the page of a job shows into one HTML file, which needs nothing else; returns its path.

    Called by users' programs and ``weir report``, while the control plane of a job is there, also after the end of the
    job. A file that is there is replaced.

    Args:
        address: HTTP address of the control plane.
        path: of the file; its directory exists.

    Raises:
        AskError: the address is none, or no control plane of this version answers there.
        ConnectionLostError: nobody answers.
        OSError: the file cannot be written.
    """
    host, port = place_of(address)
    connection = open_connection(host, port, _TIMEOUT_S)
    try:
        connection.request("GET", "/report", headers=token_headers())
        reply = connection.getresponse()
        page = reply.read()
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionLostError(f"{host}:{port} does not answer: {error}") from error
    finally:
        connection.close()
    if reply.status != http.client.OK or reply.headers.get_content_type() != "text/html":
        raise AskError(
            reply.status, f"{host}:{port} is not the HTTP address of a control plane; weir run names it"
        )
    written = Path(path)
    written.write_bytes(page)
    return written
