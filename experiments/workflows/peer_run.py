"""The same workload on Kafka Streams: one Java program, ``peer/WorkflowPeer.java``, with the same driver and topic."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from experiments.ports import free_port
from experiments.processes import ClusterError, WeirProcess
from experiments.workflows.driver import Launch, run_launch
from experiments.workflows.home import Home, Settings
from experiments.workflows.job import INPUT_TOPIC
from experiments.workflows.trial import Say
from services.jars import jars, java
from weir.errors import ConfigError

_SOURCE = Path(__file__).with_name("peer") / "WorkflowPeer.java"
_POLL_S = 0.1
_TIMEOUT_S = 900.0
_HEAP = "2g"


def run_peer(directory: Path, launch: Launch, partitions: int, say: Say) -> dict[str, Any]:
    """Start a broker and the peer, send a launch as fast as possible, and end both.

    Returns:
        ``commands_per_second``, ``start_latency_ms_mean``, ``start_latency_ms_max``, ``cpu_s`` and ``wrong``.

    Raises:
        ConfigError: there is no Java compiler.
        ServiceError: Maven is missing, or the broker does not start.
        ClusterError: the peer ended.
    """
    if not shutil.which("javac"):
        raise ConfigError(
            "the peer needs javac: install (Debian) openjdk-17-jdk-headless, or leave --peer out"
        )
    home = Home(directory / "home")
    home.set_up(Settings("kafka", "", 1, free_port(), partitions), say)
    peer = _start(directory, home.bootstrap, partitions)
    try:
        peer.wait_for_text("state RUNNING")
        say(f"Kafka Streams: {launch.commands:,} commands")
        began_s = time.monotonic()
        run_launch(launch, "kafka", home.bootstrap, partitions, say)
        found = _wait(peer, launch.commands)
        took_s = time.monotonic() - began_s
        peer.sample()
    finally:
        peer.popen.terminate()
        try:
            peer.popen.wait(20)
        except subprocess.TimeoutExpired:
            peer.popen.kill()
            peer.popen.wait()
        home.end_brokers(wipe=True)
    starts = launch.workflows * launch.tasks
    return {
        "commands_per_second": round(launch.commands / took_s),
        "seconds": round(took_s, 2),
        "start_latency_ms_mean": round(found["latency_ms"] / max(1, found["starts"]), 2),
        "start_latency_ms_max": found["longest_ms"],
        "cpu_s": round(peer.cpu_s, 1),
        "wrong": int(found["refused"] != 0) + int(found["starts"] != starts),
    }


def _start(directory: Path, bootstrap: str, threads: int) -> WeirProcess:
    classes, lib = directory / "classes", jars("kafka_streams")
    subprocess.run(["javac", "-d", str(classes), "-cp", f"{lib}/*", str(_SOURCE)], check=True)
    command = [*java(f"-Xmx{_HEAP}"), "-cp", f"{classes}:{lib}/*", "WorkflowPeer", bootstrap, INPUT_TOPIC]
    log_path = directory / "peer.log"
    with log_path.open("ab") as log:
        popen = subprocess.Popen(
            [*command, str(directory / "state"), str(threads)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    return WeirProcess("the peer", popen, log_path)


def _wait(peer: WeirProcess, commands: int) -> dict[str, int]:
    """The counts of the peer when it has taken so many commands."""
    until_s = time.monotonic() + _TIMEOUT_S
    while True:
        lines = [line for line in peer.log_tail(50).splitlines() if line.startswith("processed ")]
        found = dict(
            zip(
                ("commands", "refused", "starts", "latency_ms", "longest_ms"),
                map(int, lines[-1].split()[1:] if lines else ()),
                strict=False,
            )
        )
        if found.get("commands", 0) >= commands:
            return found
        if not peer.alive() or time.monotonic() > until_s:
            raise ClusterError(f"the peer took {found} commands of {commands}\n{peer.log_tail()}")
        time.sleep(_POLL_S)
