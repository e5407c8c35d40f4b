"""A replicated log on this machine for tests and benchmarks: processes that are killed, paused and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

import weir.log
from experiments import processes
from experiments.ports import free_port
from experiments.processes import WAIT_TIMEOUT_S, ClusterError
from experiments.tcp_proxy import TcpProxy
from weir.errors import WeirError

_POLL_S = 0.02
#: Number of the second controller.
STANDBY = -1


class LogCluster:
    """A controller and some brokers, numbered from 1. As a context manager it kills all of them at its end."""

    def __init__(
        self,
        directory: Path,
        brokers: int = 3,
        lease_ms: int = 1000,
        *,
        is_proxied: bool = False,
        etcd: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            directory: of all data.
            brokers: how many.
            lease_ms: a broker that is silent for so long is lost.
            etcd: of the record, and a second controller, ``STANDBY``, may be started; "": it is in a file.
            environment: variables on top of this process's.
            is_proxied: others reach each broker, and it reaches the controller, by a proxy that can be cut.
        """
        self.directory = directory
        self._etcd = etcd
        self._environment = {**os.environ, **(environment or {})}
        self.controller_port, self._standby_port = free_port(), free_port()
        self.http_port = free_port()
        self.ports = {number: free_port() for number in range(1, brokers + 1)}
        self._lease_ms = lease_ms
        #: By number of the broker: what others reach it by, and what it reaches the controller by.
        self.proxies: dict[int, TcpProxy] = {}
        self.controller_proxies: dict[int, TcpProxy] = {}
        if is_proxied:
            self.proxies = {number: TcpProxy(port) for number, port in self.ports.items()}
            self.controller_proxies = {number: TcpProxy(self.controller_port) for number in self.ports}
        #: By number of the broker; 0 is the controller.
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def addresses(self) -> str:
        """Of all brokers, as clients take them."""
        ports = {number: proxy.port for number, proxy in self.proxies.items()} or self.ports
        return ",".join(f"127.0.0.1:{port}" for port in ports.values())

    def broker_directory(self, number: int) -> Path:
        """Where a broker keeps its data."""
        return self.directory / str(number)

    def log_path(self, number: int) -> Path:
        """What a process has written."""
        return self.directory / f"{number}.txt"

    def rss_bytes(self) -> int:
        """Memory of all processes that run."""
        return sum(psutil.Process(process.pid).memory_info().rss for process in self._processes.values())

    def __enter__(self) -> LogCluster:
        self.directory.mkdir(parents=True, exist_ok=True)
        for number in (0, *self.ports):
            self.start(number)
        self.wait_for_brokers(len(self.ports))
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._processes:
            self.kill(number)
        for proxy in (*self.proxies.values(), *self.controller_proxies.values()):
            proxy.close()

    def start(self, number: int) -> None:
        """Start a process that does not run; 0 is the controller."""
        arguments = [
            "--port",
            str(self._standby_port if number == STANDBY else self.controller_port),
            "--controller-only",
            "--http-port",
            "0" if self._etcd else str(self.http_port),
            "--lease-ms",
            str(self._lease_ms),
            *(("--etcd", self._etcd) if self._etcd else ()),
        ]
        if number > 0:
            arguments = ["--id", str(number), "--port", str(self.ports[number])]
            controller_port = self.controller_port
            if number in self.proxies:
                controller_port = self.controller_proxies[number].port
                arguments += ["--advertised-port", str(self.proxies[number].port)]
            also = f",127.0.0.1:{self._standby_port}" if self._etcd else ""
            arguments += ["--controller", f"127.0.0.1:{controller_port}{also}"]
        with open(self.log_path(number), "ab") as output:
            command = [sys.executable, "-m", "log_broker", "--dir", str(self.broker_directory(number))]
            self._processes[number] = processes.start_process(
                [*command, *arguments], output, self._environment
            )

    def add(self) -> int:
        """Start one more broker, and return its number once it attends."""
        number = max(self.ports) + 1
        self.ports[number] = free_port()
        self.start(number)
        self._until(lambda status: number in status.brokers, f"broker {number}")
        return number

    def wait_until_moved(self) -> None:
        """Return when every replica is where it is to be, and the first one of each partition leads."""
        self._until(
            lambda status: all(
                not each.target_ids and each.leader_id == each.replica_ids[0] for each in status.partitions
            ),
            "replicas that have moved",
        )

    def kill(self, number: int) -> None:
        """Kill it as kill -9 does, and wait until it is gone."""
        self._processes[number].kill()
        self._processes[number].wait()

    def stop(self, number: int) -> int:
        """End it in order; returns its exit code."""
        self._processes[number].send_signal(signal.SIGTERM)
        return self._processes[number].wait(WAIT_TIMEOUT_S)

    def exit_code(self, number: int) -> int:
        """Wait until it has ended by itself."""
        return self._processes[number].wait(WAIT_TIMEOUT_S)

    def pause(self, number: int) -> None:
        """Stop it with SIGSTOP."""
        os.kill(self._processes[number].pid, signal.SIGSTOP)

    def resume(self, number: int) -> None:
        """Let it go on."""
        os.kill(self._processes[number].pid, signal.SIGCONT)

    def pid(self, number: int) -> int:
        """Of the running process."""
        return self._processes[number].pid

    def status(self) -> weir.log.LogStatus | None:
        """What the controller says; None: nobody answers."""
        try:
            return weir.log.log_status(self.addresses)
        except WeirError:
            return None

    def wait_for_brokers(self, count: int) -> None:
        """Return when so many attend."""
        self._until(lambda status: len(status.brokers) == count, f"{count} brokers")

    def leader(self, topic: str, partition: int = 0) -> int:
        """Number of the broker that leads, once one does."""
        found: list[int] = []

        def leads(status: weir.log.LogStatus) -> bool:
            found[:] = [
                each.leader_id
                for each in status.partitions
                if (each.topic, each.partition) == (topic, partition) and each.leader_id
            ]
            return bool(found)

        self._until(leads, f"a leader of {topic}/{partition}")
        return found[0]

    def wait_until_whole(self, topic: str, *, is_level: bool = True) -> None:
        """Return when every replica of a topic is a member and has all that is committed.

        Args:
            topic: its name.
            is_level: False: a replica need not have the latest, which it never seems to while somebody writes.
        """

        def is_whole(status: weir.log.LogStatus) -> bool:
            return all(
                each.leader_id
                and len(each.replicas) == len(each.replica_ids)
                and all(
                    replica.is_member and (replica.end_offset >= each.commit_offset or not is_level)
                    for replica in each.replicas
                )
                for each in status.partitions
                if each.topic == topic
            )

        self._until(is_whole, f"whole replicas of {topic}")

    def _until(self, holds: Callable[[weir.log.LogStatus], bool], what: str) -> None:
        until_s = time.monotonic() + WAIT_TIMEOUT_S
        while True:
            status = self.status()
            if status is not None and not status.trouble and holds(status):
                return
            if time.monotonic() > until_s:
                logs = "".join(self.log_path(each).read_text()[-2000:] for each in self._processes)
                raise ClusterError(f"{what}: not within {WAIT_TIMEOUT_S:.0f} s; {status}\n{logs}")
            time.sleep(_POLL_S)
