"""Apache Cassandra, one node on 127.0.0.1."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from services import daemon
from services.daemon import HOST, Daemon
from services.errors import ServiceError
from services.jars import HOME, jars, java, locked, say

DIRECTORY = HOME / "run" / "cassandra"
# What Cassandra's own start script tells a Java 17 machine; without the exports and opens it does not start.
_EXPORTS = (
    *("java.base/jdk.internal.misc", "java.base/java.lang.ref", "java.rmi/sun.rmi.registry"),
    *("java.rmi/sun.rmi.server", "java.management.rmi/com.sun.jmx.remote.internal.rmi", "java.sql/java.sql"),
    *("jdk.unsupported/sun.misc", "jdk.compiler/com.sun.tools.javac.file", "jdk.attach/sun.tools.attach"),
)
_OPENS = (
    *(
        "java.base/java.lang",
        "java.base/java.lang.module",
        "java.base/java.lang.reflect",
        "java.base/java.io",
    ),
    *("java.base/java.util", "java.base/java.nio", "java.base/sun.nio.ch", "java.base/jdk.internal.loader"),
    *("java.base/jdk.internal.ref", "java.base/jdk.internal.reflect", "java.base/jdk.internal.math"),
    *("java.base/jdk.internal.module", "java.base/jdk.internal.util.jar"),
    *("jdk.management/com.sun.management.internal", "jdk.compiler/com.sun.tools.javac"),
)
_MODULES = tuple(
    f"--add-{verb}={name}=ALL-UNNAMED"
    for verb, names in (("exports", _EXPORTS), ("opens", _OPENS))
    for name in names
)
_JVM = (
    *("-server", "-ea", "-da:net.openhft...", "-Xss256k", "-XX:+UseG1GC", "-XX:+ParallelRefProcEnabled"),
    *("-XX:MaxTenuringThreshold=1", "-XX:MaxGCPauseMillis=300", "-XX:InitiatingHeapOccupancyPercent=70"),
    *("-XX:+PerfDisableSharedMem", "-XX:+ExitOnOutOfMemoryError", "-Djava.net.preferIPv4Stack=true"),
    *("-Djdk.attach.allowAttachSelf=true", "-Dio.netty.tryReflectionSetAccessible=true"),
    *("-Dio.netty.allocator.useCacheForAllThreads=true", "-Dio.netty.allocator.maxOrder=11"),
    # A single node has no peers to wait for.
    *("-Dcassandra.ring_delay_ms=1", "-Dcassandra.skip_wait_for_gossip_to_settle=0"),
    "-Dcassandra.superuser_setup_delay_ms=0",
)
_LOGBACK = """<configuration><appender name="out" class="ch.qos.logback.core.ConsoleAppender"><encoder>
<pattern>%d %level %thread %logger{0} %msg%n</pattern></encoder></appender>
<root level="INFO"><appender-ref ref="out"/></root></configuration>
"""
#: Protocol version 4; any node answers it before a login, with ``SUPPORTED``.
_CQL_OPTIONS, _CQL_SUPPORTED, _CQL_HEADER_BYTES = bytes([4, 0, 0, 0, 5, 0, 0, 0, 0]), 6, 9


def start(
    directory: Path,
    *,
    port: int = 9042,
    storage_port: int = 7000,
    jmx_port: int = 0,
    heap: str = "1g",
    properties: Mapping[str, str] | None = None,
    timeout_s: float = 180.0,
) -> str:
    """Start the node if it does not run, wait until it serves CQL, and return its address.

    Raises:
        ServiceError: Java or Maven is missing, a port is in use, the directory has other settings, or the node ended.
    """
    lib = jars("cassandra")
    with locked(HOME / "cassandra.lock"):
        settings = {
            "port": port,
            "storage_port": storage_port,
            "jmx_port": jmx_port,
            "heap": heap,
            "set": dict(properties or {}),
            "jars": lib.name,
        }
        daemon.check_settings(directory, settings)
        node = _node(directory)
        if not node.pid:
            say(f"starting Cassandra in {directory} ...")
            jmx = {jmx_port: "--jmx-port"} if jmx_port else {}
            daemon.check_ports({port: "--port", storage_port: "--storage-port"} | jmx)
            daemon.remember(directory, settings)
            # JSON is YAML, and JSON needs no library here.
            configuration = json.dumps(_configuration(settings, directory), indent=1)
            (directory / "cassandra.yaml").write_text(configuration + "\n")
            (directory / "logback.xml").write_text(_LOGBACK)
            node.launch(_command(settings, directory, lib))
        daemon.wait_ready([node], lambda: _serves(settings), timeout_s)
    return f"{HOST}:{port}"


def stop(directory: Path, *, wipe: bool = False, grace_s: float = 30.0) -> None:
    """Stop the node; with ``wipe`` kill it and delete the directory."""
    _node(directory).end(0.0 if wipe else grace_s)
    if wipe:
        daemon.wipe(directory)


def kill(directory: Path) -> None:
    """SIGKILL; ``start`` replays the commit log, which has all that was acknowledged, unless it is periodic."""
    _node(directory).end(0.0)


def states(directory: Path) -> list[tuple[Daemon, int, str]]:
    """The node with its port and ``serving``, ``starting`` or ``down``; empty: never started there."""
    settings = daemon.recall(directory)
    if settings is None:
        return []
    node = _node(directory)
    try:
        state = "down" if not node.pid else "serving" if _serves(settings) else "starting"
    except OSError:
        state = "starting"
    return [(node, settings["port"], state)]


def run_nodetool(directory: Path, arguments: Sequence[str]) -> None:
    """Replace this process by Cassandra's nodetool.

    Raises:
        ServiceError: the node was started without JMX.
    """
    settings = daemon.recall(directory) or {}
    if not settings.get("jmx_port"):
        raise ServiceError("nodetool needs JMX, which is off: start with --jmx-port 7199")
    command = [
        *(*java("-Xmx128m"), *_MODULES, f"-Dcassandra.storagedir={directory}/data"),
        *(f"-Dlogback.configurationFile={directory}/logback.xml", "-cp", f"{jars('cassandra')}/*"),
        *("org.apache.cassandra.tools.NodeTool", "-h", HOST, "-p", str(settings["jmx_port"]), *arguments),
    ]
    os.execvp(command[0], command)


def _node(directory: Path) -> Daemon:
    return Daemon(directory, "cassandra")


def _command(settings: Mapping[str, Any], directory: Path, lib: Path) -> list[str]:
    heap, jmx_port = settings["heap"], settings["jmx_port"]
    return [
        *java(*_JVM, f"-Xms{heap}", f"-Xmx{heap}", "-XX:MaxDirectMemorySize=512m"),
        *(*_MODULES, f"-javaagent:{next(lib.glob('jamm-*.jar'))}"),
        *([f"-Dcassandra.jmx.local.port={jmx_port}"] if jmx_port else []),
        f"-Dcassandra.config=file://{directory}/cassandra.yaml",
        *(f"-Dcassandra.storagedir={directory}/data", f"-Djna.tmpdir={directory}"),
        f"-Dlogback.configurationFile={directory}/logback.xml",
        *("-cp", f"{lib}/*", "org.apache.cassandra.service.CassandraDaemon"),
    ]


def _configuration(settings: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """cassandra.yaml; what it does not name has Cassandra's default, and every value that the user set wins."""
    data = directory / "data"
    seeds = [{"seeds": f"{HOST}:{settings['storage_port']}"}]
    is_periodic = settings["set"].get("commitlog_sync") == "periodic"
    return {
        "cluster_name": "weir",
        "num_tokens": 16,
        "auto_bootstrap": False,
        "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
        "endpoint_snitch": "SimpleSnitch",
        "seed_provider": [
            {"class_name": "org.apache.cassandra.locator.SimpleSeedProvider", "parameters": seeds}
        ],
        "listen_address": HOST,
        "storage_port": settings["storage_port"],
        "ssl_storage_port": settings["storage_port"] + 1,
        "rpc_address": HOST,
        "native_transport_port": settings["port"],
        "data_file_directories": [str(data / "tables")],
        "commitlog_directory": str(data / "commitlog"),
        "saved_caches_directory": str(data / "caches"),
        "hints_directory": str(data / "hints"),
        "cdc_raw_directory": str(data / "cdc"),
        # With "periodic" a node that is killed forgets what it has acknowledged in the last 100 ms.
        "commitlog_sync": "batch",
        "commitlog_total_space": "512MiB",
        "storage_compatibility_mode": "NONE",
        # Cassandra demands it of this way, and refuses it of any other.
        **({"commitlog_sync_period": "10000ms"} if is_periodic else {}),
    } | {
        key: json.loads(value) if value in ("true", "false") or value.isdigit() or value[:1] == "{" else value
        for key, value in settings["set"].items()
    }


def _serves(settings: Mapping[str, Any]) -> bool:
    """Whether the node answers on its CQL port, which is opened as the last step of its start."""
    answer = daemon.exchange(settings["port"], _CQL_OPTIONS, lambda got: len(got) >= _CQL_HEADER_BYTES)
    return answer[4] == _CQL_SUPPORTED
