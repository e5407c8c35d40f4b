"""Apache Kafka (KRaft, one or three brokers, each with its controller) on 127.0.0.1."""

from __future__ import annotations

import base64
import os
import struct
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from services import daemon
from services.daemon import HOST, Daemon
from services.errors import ServiceError
from services.jars import HOME, jars, java, locked, say

DIRECTORY = HOME / "run" / "kafka"
# The flags of Kafka's own start script; the metadata log needs no more heap than the brokers.
_JVM = (
    *("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"),
    *("-XX:+ExplicitGCInvokesConcurrent", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true"),
)
_LOG4J = """<Configuration status="WARN" shutdownHook="disable"><Appenders><Console name="out">
<PatternLayout pattern="%d %p %m (%c)%n"/></Console></Appenders>
<Loggers><Root level="{level}"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""
_CONTROLLER_PORT_OFFSET = 10
#: Types of requests of the Kafka protocol.
_METADATA, _FIND_COORDINATOR = 3, 10
#: Two of three brokers have no quorum to hand their partitions over to once the third is gone, and wait for minutes.
_LAST_BROKER_GRACE_S = 3.0


def start(
    directory: Path,
    *,
    brokers: int = 1,
    base_port: int = 9092,
    heap: str = "512m",
    properties: Mapping[str, str] | None = None,
    timeout_s: float = 120.0,
) -> str:
    """Start the brokers that do not run, wait until all serve, and return their addresses.

    Raises:
        ServiceError: Java or Maven is missing, a port is in use, the directory has other settings, or a broker ended.
    """
    lib = jars("kafka")
    with locked(HOME / "kafka.lock"):
        before = daemon.recall(directory) or {}
        settings = {
            "brokers": brokers,
            "base_port": base_port,
            "heap": heap,
            "set": dict(properties or {}),
            "cluster_id": before.get("cluster_id") or _cluster_id(),
            "jars": lib.name,
        }
        daemon.check_settings(directory, settings)
        everyone = _daemons(settings, directory)
        down = [number for number, broker in enumerate(everyone) if not broker.pid]
        if down:
            say(f"starting Kafka, {len(down)} of {brokers} broker(s), in {directory} ...")
            offsets = (0, _CONTROLLER_PORT_OFFSET)
            daemon.check_ports(
                {base_port + number + offset: "--base-port" for number in down for offset in offsets}
            )
            daemon.remember(directory, settings)
            for level in ("WARN", "INFO"):
                (directory / f"log4j2-{level}.xml").write_text(_LOG4J.format(level=level))
            _format_storage(settings, directory)
            for number in down:
                configuration = str(directory / f"{everyone[number].name}.properties")
                flags = (*_JVM, f"-Xmx{heap}", "-Xms128m")
                everyone[number].launch(
                    [*_java(directory / "log4j2-INFO.xml", *flags), "kafka.Kafka", configuration]
                )
        daemon.wait_ready(
            everyone, lambda: all(_serves(settings, i) for i in range(1, brokers + 1)), timeout_s
        )
    return bootstrap(settings)


def stop(directory: Path, *, wipe: bool = False, grace_s: float = 15.0) -> None:
    """Stop all brokers; with ``wipe`` kill them and delete the directory."""
    if settings := daemon.recall(directory):
        first, *others = _daemons(settings, directory)
        grace_s = 0.0 if wipe else grace_s
        for broker in reversed(others):
            broker.end(grace_s)
        first.end(min(grace_s, _LAST_BROKER_GRACE_S) if others else grace_s)
    if wipe:
        daemon.wipe(directory)


def kill(directory: Path, broker: int) -> None:
    """SIGKILL for one broker, 1 to 3; ``start`` brings it back.

    Raises:
        ServiceError: there is no such broker.
    """
    settings = daemon.recall(directory) or {"brokers": 0}
    if not 1 <= broker <= settings["brokers"]:
        raise ServiceError(f"no broker {broker} in {directory}: it has {settings['brokers']}")
    _daemons(settings, directory)[broker - 1].end(0.0)


def states(directory: Path) -> list[tuple[Daemon, int, str]]:
    """Every broker with its port and ``serving``, ``starting`` or ``down``; empty: never started there."""
    settings = daemon.recall(directory)
    if settings is None:
        return []
    found = []
    for number, broker in enumerate(_daemons(settings, directory), 1):
        try:
            state = "down" if not broker.pid else "serving" if _serves(settings, number) else "starting"
        except OSError:
            state = "starting"
        found.append((broker, settings["base_port"] + number - 1, state))
    return found


def bootstrap(settings: Mapping[str, Any]) -> str:
    """``bootstrap.servers`` of a cluster."""
    return ",".join(f"{HOST}:{settings['base_port'] + i}" for i in range(settings["brokers"]))


def run_tool(main_class: str, arguments: Sequence[str], heap: str = "256m") -> None:
    """Replace this process by one of Kafka's own command-line tools."""
    quiet = HOME / "log4j2-tool.xml"
    quiet.parent.mkdir(parents=True, exist_ok=True)
    quiet.write_text(_LOG4J.format(level="WARN"))
    command = [*_java(quiet, f"-Xmx{heap}"), main_class, *arguments]
    os.execvp(command[0], command)


def _daemons(settings: Mapping[str, Any], directory: Path) -> list[Daemon]:
    return [Daemon(directory, f"broker-{i}") for i in range(1, settings["brokers"] + 1)]


def _cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")


def _java(log4j: Path, *flags: str) -> list[str]:
    return [*java(*flags), f"-Dlog4j2.configurationFile={log4j}", "-cp", f"{jars('kafka')}/*"]


def _properties(settings: Mapping[str, Any], broker: int, directory: Path) -> dict[str, str]:
    """The configuration of one broker; every value that the user set wins."""
    count, base = settings["brokers"], settings["base_port"]
    first_controller = base + _CONTROLLER_PORT_OFFSET - 1
    client, controller = f"{HOST}:{base + broker - 1}", f"{HOST}:{first_controller + broker}"
    in_sync = str(min(2, count))
    return {
        "node.id": str(broker),
        "process.roles": "broker,controller",
        "controller.quorum.voters": ",".join(
            f"{i}@{HOST}:{first_controller + i}" for i in range(1, count + 1)
        ),
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{client},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{client}",
        "log.dirs": str(directory / f"data-{broker}"),
        "default.replication.factor": str(count),
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": str(count),
        "offsets.topic.num.partitions": "6",
        "transaction.state.log.replication.factor": str(count),
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": "6",
        "share.coordinator.state.topic.replication.factor": str(count),
        "share.coordinator.state.topic.min.isr": in_sync,
        "group.initial.rebalance.delay.ms": "0",
        **settings["set"],
    }


def _format_storage(settings: Mapping[str, Any], directory: Path) -> None:
    """Write the configuration files, and format the data directories that are new, all at the same time."""
    tools = []
    for broker in range(1, settings["brokers"] + 1):
        configuration = directory / f"broker-{broker}.properties"
        values = _properties(settings, broker, directory)
        configuration.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        if not Path(values["log.dirs"], "meta.properties").exists():
            command = [
                *_java(directory / "log4j2-WARN.xml", "-Xmx128m", "-XX:TieredStopAtLevel=1"),
                *("kafka.tools.StorageTool", "format", "--cluster-id", settings["cluster_id"]),
                *("--config", str(configuration)),
            ]
            tools.append(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            )
    for tool in tools:
        output, _ = tool.communicate()
        if tool.returncode:
            raise ServiceError(f"Kafka could not format its storage:\n{output[-2000:]}")


def _ask(port: int, request: int, version: int, body: bytes) -> bytes:
    """One request of the Kafka protocol; its response without size and number."""
    client = b"probe"
    message = struct.pack(f">hhih{len(client)}s", request, version, 1, len(client), client) + body
    answer = daemon.exchange(
        port,
        struct.pack(">i", len(message)) + message,
        lambda got: len(got) >= 4 and len(got) >= 4 + struct.unpack(">i", got[:4])[0],
    )
    return answer[8:]


def _serves(settings: Mapping[str, Any], broker: int) -> bool:
    """Whether a broker knows all brokers, and finds a coordinator for groups (0) and for transactions (1)."""
    port = settings["base_port"] + broker - 1
    known = struct.unpack(">i", _ask(port, _METADATA, 1, struct.pack(">i", 0))[:4])[0]
    key = struct.pack(">h5s", 5, b"probe")
    errors = [
        struct.unpack(">xxxxh", _ask(port, _FIND_COORDINATOR, 1, key + bytes([kind]))[:6])[0]
        for kind in (0, 1)
    ]
    return bool(known == settings["brokers"] and errors == [0, 0])
