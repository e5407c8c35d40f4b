"""S3 as a process of its own on a real socket (moto), for tests."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

from experiments.ports import free_port

SECRET = "s3cret"
_START_S_MAX = 60


def uri_of(port: int, bucket: str = "bucket") -> str:
    """The checkpoint_uri of a bucket at this server."""
    options = f"scheme=http&endpoint_override=127.0.0.1:{port}&region=us-east-1&allow_bucket_creation=true"
    return f"s3://key:{SECRET}@{bucket}/checkpoints?{options}"


@contextlib.contextmanager
def s3_server() -> Iterator[int]:
    """A running server with the empty bucket ``bucket``; gives its port."""
    port = free_port()
    # Not the user's credentials, whatever happens.
    environment = os.environ | {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": SECRET}
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline_s = time.monotonic() + _START_S_MAX
        while True:
            request = urllib.request.Request(f"http://127.0.0.1:{port}/bucket", method="PUT")
            try:
                with urllib.request.urlopen(request, timeout=5):
                    break
            except (urllib.error.URLError, OSError):
                assert server.poll() is None, "the S3 server ended"
                assert time.monotonic() < deadline_s, "the S3 server does not answer"
                time.sleep(0.05)
        yield port
    finally:
        server.kill()
        server.wait()
