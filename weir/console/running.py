"""``weir run``: one job on processes of this machine, from start to exit code."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from weir.clock import SystemClock
from weir.console.job_files import JobFile
from weir.console.processes import Child, Children, Ended, Event, Signalled, Terminal, Told
from weir.console.replacements import Replacements
from weir.console.run_directory import RunDirectory
from weir.kernels.sources import cache_directory
from weir.process.lifeline import Message
from weir.process.printable import one_entry

#: Exit codes: as the control plane's; and 128 + the signal's number where the job could not say its own.
FAILED_EXIT_CODE = 1
_CANCELLED_EXIT_CODE = 3
_BY_SIGNAL_EXIT_CODE = 128
#: Of the control plane: another one would say the same.
_REFUSED_EXIT_CODE = 2
#: Slots of a task manager: here nobody else can bring more, so a job must never wait for some.
_SLOTS = 1000
#: Where a job is asked; taken if it is free, so that commands can be written down.
_HTTP_PORT = 9008
#: An end in order without a word of the control plane for so long was somebody else's order.
_LATE_S = 2.0
#: So long may the control plane take, after a second signal, to write down that the job is cancelled.
_CLOSE_S = 2.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class RunOptions:
    """What the user asked for."""

    job: JobFile
    directory: RunDirectory
    task_managers: int = 1
    #: 0: any free one; None: the usual one, or any if that is taken.
    http_port: int | None = None
    follow: bool = True
    verbose: bool = False
    #: Go to both processes: ``--config``, ``--set``.
    shared: Sequence[str] = ()
    #: Go to the control plane: ``--param``, ``--from-savepoint``.
    control_plane: Sequence[str] = ()


def run_job(options: RunOptions) -> int:
    """Run it to its end; returns the exit code.

    Raises:
        WeirError: the directory of the run cannot be used.
    """
    console = Console(stderr=True)
    # Before the environment is copied: all processes keep their kernels at the same place.
    cache_directory()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(options.job.python_path(os.environ)),
    }
    with options.directory.in_use():
        return _Run(options, environment, draws=options.follow and console.is_terminal).run()


@dataclass(eq=False)
class _Run:
    options: RunOptions
    environment: Mapping[str, str]
    #: The control plane draws on the terminal.
    draws: bool
    #: Of the control plane, when it listens.
    addresses: Message = field(default_factory=dict)
    #: State and cause of the job, when it has ended.
    outcome: Message = field(default_factory=dict)
    #: The first signal that came, and the second one; 0: none.
    signal: int = 0
    second_signal: int = 0
    #: The control plane that runs now has said where it is.
    listens: bool = False
    lost_task_managers: Replacements = field(default_factory=Replacements)
    lost_control_planes: Replacements = field(default_factory=Replacements)

    def run(self) -> int:
        self.terminal = Terminal() if self.draws else None
        self.children = Children(self.environment, self.terminal, SystemClock())
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            self._start_control_plane()
            self.task_managers = {
                self._start_task_manager(number): number
                for number in range(1, self.options.task_managers + 1)
            }
            code = self._watch()
        finally:
            self.children.close()
            for number, handler in before.items():
                signal.signal(number, handler)
        self._say_goodbye(code)
        return code

    def _watch(self) -> int:
        """Watch until the control plane has ended; returns the exit code."""
        while True:
            event = self.children.events.get()
            if isinstance(event, Signalled):
                if event.is_late or self.second_signal:
                    return _BY_SIGNAL_EXIT_CODE + event.number
                self._stop(event)
            elif isinstance(event, Told):
                self._take(event.child, event.message)
                if self.outcome and self.second_signal:
                    # The job is cancelled, on record too: the next run may begin.
                    return _BY_SIGNAL_EXIT_CODE + self.second_signal
            elif event.child is self.control_plane:
                if not self._replace_control_plane(event):
                    return self._code_of(event)
            elif self._is_wanted(event) and not self._replace(event):
                return FAILED_EXIT_CODE

    def _stop(self, signalled: Signalled) -> None:
        """Cancel the job; after a second signal without waiting for anything that runs."""
        if self.signal:
            self.second_signal = signalled.number
            self._later(_CLOSE_S, replace(signalled, is_late=True))
        else:
            self.signal = signalled.number
            _say("stopping the job; a second signal ends everything at once")
        self.control_plane.popen.terminate()

    def _later(self, delay_s: float, event: Event) -> None:
        timer = threading.Timer(delay_s, self.children.events.put, [event])
        timer.daemon = True
        timer.start()

    def _is_wanted(self, ended: Ended) -> bool:
        """Return whether another task manager is needed in the place of one that has ended."""
        if self.outcome or self.signal:
            return False
        if ended.code == 0 and not ended.is_late:
            # Told to end by the control plane, which is about to say why; or by somebody else.
            self._later(_LATE_S, replace(ended, is_late=True))
            return False
        return True

    def _take(self, child: Child, message: Message) -> None:
        if child is not self.control_plane:
            return
        if "address" in message:
            is_first = not self.addresses
            self.addresses, self.listens = message, True
            if is_first and not self.draws:
                _say(
                    f"job {self.options.job.name}: page http://{message['http']}/, http://{message['http']}/status"
                )
            for task_manager in self.task_managers:
                self._tell_where(task_manager)
        elif "state" in message:
            self.outcome = message

    def _replace(self, ended: Ended) -> bool:
        """Start another task manager in the place of one that has died; False if that is of no use."""
        number = self.task_managers.pop(ended.child)
        if ended.code >= 0 and not self.addresses:
            # It has not even heard of the job: it has said what is wrong, and another one would say it, too.
            return False
        refused = self.lost_task_managers.take(had_worked=bool(self.addresses))
        if refused:
            _say(f"error: {ended.child.name} {_how(ended.code)}, {refused}")
            return False
        _say(f"{ended.child.name} {_how(ended.code)}; starting another one")
        self.task_managers[self._start_task_manager(number)] = number
        return True

    def _replace_control_plane(self, ended: Ended) -> bool:
        """Start another one that takes the job over as it runs; False if it has ended as it should, or in vain."""
        has_told = ended.code == _REFUSED_EXIT_CODE or (ended.code >= 0 and not self.addresses)
        if self.outcome or self.signal or has_told:
            return False
        refused = self.lost_control_planes.take(had_worked=self.listens)
        if refused:
            _say(f"the control plane {_how(ended.code)}, {refused}")
            return False
        what = "another one takes the job over" if self.addresses else "starting another one"
        _say(f"the control plane {_how(ended.code)}; {what}")
        self._start_control_plane()
        return True

    def _start_control_plane(self) -> None:
        self.listens = False
        self.control_plane = self.children.start(
            "control plane", "control_plane", self._control_plane_arguments(), owns_terminal=True
        )
        if self.terminal is not None:
            self.terminal.owner = self.control_plane

    def _start_task_manager(self, number: int) -> Child:
        child = self.children.start(
            f"task manager {number}", "task_manager", self._task_manager_arguments(number)
        )
        if self.addresses:
            self._tell_where(child)
        return child

    def _tell_where(self, task_manager: Child) -> None:
        task_manager.tell({"control_plane": self.addresses["address"]})

    def _code_of(self, ended: Ended) -> int:
        if "exit_code" in self.outcome:
            return int(self.outcome["exit_code"])
        if ended.code >= 0:
            return ended.code
        if self.signal and not self.addresses:
            _say(f"job {self.options.job.name} cancelled before it began")
            return _CANCELLED_EXIT_CODE
        if self.signal:
            return _BY_SIGNAL_EXIT_CODE + self.signal
        _say(
            f"error: the control plane {_how(ended.code)}; run the command again: the job goes on from its latest "
            "checkpoint"
        )
        return FAILED_EXIT_CODE

    def _say_goodbye(self, code: int) -> None:
        if not self.outcome:
            return
        name, cause = self.options.job.name, self.outcome.get("cause", "")
        if code == FAILED_EXIT_CODE:
            _say(f"logs are in {self.options.directory.logs}")
            failed = self.outcome["state"] == "FAILED"
            _say(f"error: job {name} {'failed: ' if failed else 'ended without '}{cause}")
        else:
            _say(f"job {name} {self.outcome['state'].lower()}: {self.outcome['summary']}")

    def _on_signal(self, number: int, _: object) -> None:
        self.children.events.put(Signalled(number))

    def _control_plane_arguments(self) -> list[str]:
        options = self.options
        return [
            *("--job", options.job.module),
            *self._places(),
            *("--task-managers", str(options.task_managers)),
            "--exit-when-finished",
            *self._log_to("control_plane"),
            *(["--follow"] if options.follow else []),
            *_set(options.directory.control_plane_settings()),
            *options.control_plane,
            # Last, so that they win.
            *options.shared,
        ]

    def _places(self) -> list[str]:
        """Where the control plane listens: one in the place of another is found where that one was."""
        if not self.addresses:
            return ["--port", "0", *_http_port(self.options.http_port)]
        port, http_port = (self.addresses[name].rpartition(":")[2] for name in ("address", "http"))
        return [
            *("--port", port),
            *("--http-port", http_port, "--or-any-http-port"),
            *("--continue-job", self.addresses["job_id"]),
        ]

    def _task_manager_arguments(self, number: int) -> list[str]:
        options = self.options
        settings = {"taskManager.tm_port": "0", "taskManager.operator_quota": str(_SLOTS)}
        return [
            *("--prometheus-port", "0"),
            *self._log_to(f"task_manager-{number}"),
            *_set({**settings, **options.directory.task_manager_settings(number)}),
            *options.shared,
        ]

    def _log_to(self, name: str) -> list[str]:
        verbose = ["--verbose"] if self.options.verbose else []
        return ["--log-file", str(self.options.directory.logs / f"{name}.log"), *verbose]


def default_directory(job: JobFile) -> RunDirectory:
    """Where a run of this job keeps its files unless the user names another place."""
    return RunDirectory(Path(".weir") / job.name)


def _set(settings: Mapping[str, str]) -> list[str]:
    return [item for key, value in settings.items() for item in ("--set", f"{key}={value}")]


def _http_port(asked: int | None) -> list[str]:
    return (
        ["--http-port", str(_HTTP_PORT), "--or-any-http-port"]
        if asked is None
        else ["--http-port", str(asked)]
    )


def _how(code: int) -> str:
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _say(text: str) -> None:
    print(f"weir run: {one_entry(text)}", file=sys.stderr, flush=True)
