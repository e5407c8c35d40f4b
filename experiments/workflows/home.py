"""The directory of a workload: its log, brokers of its own if it has some, and the job's data."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import weir.log
from experiments.workflows.job import INPUT_TOPIC, LOGS, REJECTED_TOPIC
from services import kafka
from services.daemon import Daemon, check_ports, wait_ready
from services.errors import ServiceError
from weir.errors import ConfigError, InputError, WeirError

_PORTS = {"weir": 7008, "kafka": 9092}
_READY_S, _END_S = 60.0, 20.0
_OWN_BROKERS = "weir-log"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """What ``setup`` was told.

    Attributes:
        log: "weir" or "kafka".
        bootstrap: addresses of brokers that somebody else runs; "": our own, in the directory.
        brokers: of our own.
        port: of the first of them.
        partitions: of the topic with commands.
    """

    log: str
    bootstrap: str
    brokers: int
    port: int
    partitions: int


class Home:
    """One directory; see the module."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._settings_path = directory / "workflows.json"
        self._brokers_directory = directory / "brokers"

    @property
    def settings(self) -> Settings:
        """What ``setup`` was told.

        Raises:
            InputError: there was no setup here.
        """
        try:
            return Settings(**json.loads(self._settings_path.read_text()))
        except (OSError, ValueError, TypeError):
            raise InputError(
                f"{self.directory} is no directory of a workload; run: python -m experiments workflows setup "
                f"--dir {self.directory}"
            ) from None

    @property
    def run_directory(self) -> Path:
        """Where the job keeps state, checkpoints and logs."""
        return self.directory / "job"

    @property
    def bootstrap(self) -> str:
        """Addresses of the brokers."""
        settings = self.settings
        ports = range(settings.port, settings.port + settings.brokers)
        return settings.bootstrap or ",".join(f"127.0.0.1:{port}" for port in ports)

    def set_up(self, settings: Settings, say: Say) -> None:
        """Start our own brokers if none were given, and make the topics; what is there stays.

        Raises:
            ConfigError: the directory was set up for another log, or topics have other settings.
            WeirError: brokers do not start, or do not answer.
        """
        if settings.log not in LOGS:
            raise ConfigError(f"--log {settings.log}: there are {', '.join(LOGS)}")
        if not settings.port:
            settings = Settings(**{**asdict(settings), "port": _PORTS[settings.log]})
        if self._settings_path.exists() and self.settings != settings:
            raise ConfigError(
                f"{self.directory} was set up otherwise ({self.settings}); delete it, or take another --dir"
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        if not settings.bootstrap:
            self._start_brokers(settings, say)
        self._settings_path.write_text(json.dumps(asdict(settings), indent=1) + "\n")
        for topic, partitions in ((INPUT_TOPIC, settings.partitions), (REJECTED_TOPIC, 1)):
            made = self._make_topic(topic, partitions)
            say(f"topic {topic}: {'made' if made else 'already exists'}, {partitions} partitions")

    def reset(self, say: Say) -> None:
        """Delete state and topics, and set up again: brokers of our own are ended, emptied and started.

        Raises:
            ConfigError: the log is somebody else's, and cannot delete topics.
        """
        settings = self.settings
        if settings.bootstrap and settings.log == "weir":
            raise ConfigError(
                f"the log at {settings.bootstrap} is not of this directory, and a replicated log deletes no topics: "
                "end its brokers, delete their data, start them and run setup"
            )
        if settings.bootstrap:
            from experiments.workflows.kafka_topics import delete_topics

            delete_topics(settings.bootstrap, INPUT_TOPIC, REJECTED_TOPIC)
        else:
            self.end_brokers(wipe=True)
        shutil.rmtree(self.run_directory, ignore_errors=True)
        say("state and topics are deleted")
        self.set_up(settings, say)

    def end_brokers(self, *, wipe: bool = False) -> None:
        """End brokers of our own; ``wipe``: and delete their data."""
        if self.settings.log == "kafka":
            kafka.stop(self._brokers_directory, wipe=wipe)
            return
        Daemon(self._brokers_directory, _OWN_BROKERS).end(0.0 if wipe else _END_S)
        if wipe:
            shutil.rmtree(self._brokers_directory, ignore_errors=True)

    def _start_brokers(self, settings: Settings, say: Say) -> None:
        directory = self._brokers_directory
        if settings.log == "kafka":
            kafka.start(directory.absolute(), brokers=settings.brokers, base_port=settings.port)
            return
        ports = range(settings.port - 1, settings.port + settings.brokers)
        directory.mkdir(parents=True, exist_ok=True)
        brokers = Daemon(directory.absolute(), _OWN_BROKERS)
        if brokers.pid is not None:
            return
        check_ports(dict.fromkeys(ports, "--port"))
        say(f"starting {settings.brokers} brokers of the replicated log in {directory} ...")
        command = [sys.executable, "-m", "weir", "log", "start", "--dir", str(directory.absolute() / "data")]
        command += ["--brokers", str(settings.brokers), "--port", str(settings.port)]
        # Beside others, as in a trial, the page of the log is wherever there is room.
        command += [] if settings.port == _PORTS["weir"] else ["--http-port", "0"]
        brokers.launch(command)
        addresses = ",".join(f"127.0.0.1:{port}" for port in ports[1:])
        wait_ready([brokers], lambda: _answers(addresses, settings.brokers), _READY_S)

    def _make_topic(self, topic: str, partitions: int) -> bool:
        """Whether it was not there."""
        if self.settings.log == "kafka":
            from experiments.workflows.kafka_topics import make_topic

            return make_topic(self.bootstrap, topic, partitions)
        there = {each.topic for each in weir.log.log_status(self.bootstrap).partitions}
        count = len(weir.log.log_status(self.bootstrap).brokers)
        weir.log.create_topic(
            self.bootstrap, topic, partitions=partitions, replication=3 if count >= 3 else 1
        )
        return topic not in there


def _answers(addresses: str, count: int) -> bool:
    try:
        return len(weir.log.log_status(addresses).brokers) == count
    except (WeirError, ServiceError):
        return False
