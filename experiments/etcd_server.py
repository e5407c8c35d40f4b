"""A real etcd on this machine for tests, of one server."""

from __future__ import annotations

import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from experiments.ports import free_port
from experiments.processes import WAIT_TIMEOUT_S, ClusterError

_POLL_S = 0.05


@contextmanager
def etcd_server(directory: Path) -> Iterator[str]:
    """Run a server until the end of the block; yields its URL.

    Args:
        directory: of its data and its log.

    Raises:
        ClusterError: it is not installed, or does not answer.
    """
    if not shutil.which("etcd"):
        raise ClusterError("etcd is not on PATH; `make test` installs it (Debian: etcd-server)")
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    command = ["etcd", "--data-dir", str(directory / "etcd"), "--listen-client-urls", client]
    command += ["--advertise-client-urls", client, "--listen-peer-urls", peer]
    command += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
    with (directory / "etcd.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            until_s = time.monotonic() + WAIT_TIMEOUT_S
            while not _is_healthy(client):
                if time.monotonic() > until_s or process.poll() is not None:
                    raise ClusterError(f"etcd does not answer; {directory / 'etcd.log'} says why")
                time.sleep(_POLL_S)
            yield client
        finally:
            process.kill()
            process.wait()


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1) as reply:
            return b"true" in reply.read()
    except OSError:
        return False
