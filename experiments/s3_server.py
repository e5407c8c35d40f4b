"""S3 as a process of its own on a real socket (moto), for tests and measurements; in memory, and slow if wanted."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from experiments.ports import free_port
from experiments.processes import ClusterError

SECRET = "s3cret"
_START_S_MAX = 60
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


def uri_of(port: int, bucket: str = "bucket") -> str:
    """The checkpoint_uri of a bucket at this server."""
    options = f"scheme=http&endpoint_override=127.0.0.1:{port}&region=us-east-1&allow_bucket_creation=true"
    return f"s3://key:{SECRET}@{bucket}/checkpoints?{options}"


@contextlib.contextmanager
def s3_server(delay_ms: float = 0.0, requests: Path | None = None) -> Iterator[int]:
    """Run a server with the empty bucket ``bucket``; yields its port.

    Args:
        delay_ms: for so long each request waits before it is served.
        requests: a file that gets one line for each: the method and the path.

    Raises:
        ClusterError: it ends, or does not answer.
    """
    port = free_port()
    # Not the user's credentials, whatever happens.
    environment = os.environ | {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": SECRET}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    server = subprocess.Popen(
        [sys.executable, "-m", __name__, str(port), str(delay_ms), str(requests or os.devnull)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline_s = time.monotonic() + _START_S_MAX
        while not _is_there(port):
            if server.poll() is not None or time.monotonic() > deadline_s:
                raise ClusterError("the S3 server ended, or does not answer; is moto installed (make setup)?")
            time.sleep(0.05)
        yield port
    finally:
        server.kill()
        server.wait()


def _is_there(port: int) -> bool:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/bucket", method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _range_of(bucket: str, name: str, wanted: str) -> tuple[bytes, list[tuple[str, str]]] | None:
    """Read a part of a file and make the headers of the answer; None: the server has to look itself.

    moto reads the whole file for each part of it: for a block of a table that takes longer than the delay, on the
    processors of what is measured.
    """
    from moto.s3.models import s3_backends

    found = _RANGE.fullmatch(wanted)
    account = s3_backends.bucket_accounts.get(bucket)
    if found is None or account is None:
        return None
    partition, account_id = account
    key = s3_backends[account_id][partition].get_bucket(bucket).keys.get(name)
    if key is None:
        return None
    start, stop = int(found[1]), min(int(found[2]) + 1, key.contentsize)
    if start >= stop:
        return None
    with key.lock:
        key._value_buffer.seek(start)  # noqa: SLF001
        data = key._value_buffer.read(stop - start)  # noqa: SLF001
    place = f"bytes {start}-{stop - 1}/{key.contentsize}"
    headers = {"Content-Type": "binary/octet-stream", "Content-Length": len(data), "Content-Range": place}
    return data, [(header, str(value)) for header, value in {**headers, "ETag": key.etag}.items()]


def _serve(port: int, delay_ms: float, requests: Path) -> None:
    """Serve until the process is ended."""
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import run_simple

    application: Any = DomainDispatcherApplication(create_backend_app)
    with requests.open("a", buffering=1) as lines:

        def serve(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            lines.write(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}\n")
            time.sleep(delay_ms / 1e3)
            wanted = environ.get("HTTP_RANGE", "") if environ["REQUEST_METHOD"] == "GET" else ""
            bucket, _, name = environ["PATH_INFO"].strip("/").partition("/")
            part = _range_of(bucket, name, wanted)
            if part is not None:
                start_response("206 Partial Content", part[1])
                return [part[0]]
            answer: Iterable[bytes] = application(environ, start_response)
            return answer

        run_simple("127.0.0.1", port, serve, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]))
