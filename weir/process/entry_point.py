"""What every command shares: logging to standard error, and errors as one line with an exit code."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from weir.errors import ConfigError, JobCodeError, WeirError
from weir.process.log_lines import EntryFormatter, FloodFilter
from weir.process.log_tail import LOG_TAIL
from weir.process.printable import one_entry
from weir.redaction import redacted, redacted_text

if TYPE_CHECKING:
    from weir.config import LoadedConfig

# gRPC's core writes lines of its own to standard error, such as on a busy port; we report what matters ourselves.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

#: Options of both processes.
InsecureOption = Annotated[
    bool, typer.Option("--insecure", help="Check no caller, also beyond this machine.")
]
VerboseOption = Annotated[bool, typer.Option("--verbose", help="Log more.")]
LogFileOption = Annotated[
    Path | None,
    typer.Option("--log-file", metavar="PATH", help="Log to this file; only warnings and errors are shown."),
]
ParentOption = Annotated[
    int | None, typer.Option("--parent-fd", hidden=True, help="Of weir run: where it and this process talk.")
]

#: Exit code after Ctrl-C, as shells expect it.
INTERRUPTED_EXIT_CODE = 130
#: A log file and the one before it have at most this many bytes each.
_LOG_BYTES_MAX = 10 << 20
#: Of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
#: Larger blocks go back to the kernel when they are freed, and so does what is free beyond so much at an arena's end.
_KEPT_BLOCK_BYTES, _KEPT_BYTES = 64 << 20, 256 << 20


#: Loggers below this name say what the user asked to see; it is shown even where only warnings are.
SHOWN_LOGGER = "weir.shown"
#: ``weir run`` shows what is logged under this name in other words, or from another process: then only the file has it.
REPEATED_LOGGER = "weir.repeated"


def set_up_logging(
    process: str, *, verbose: bool, path: Path | None = None, has_parent: bool = False
) -> None:
    """Log to standard error, one line per event, with the process's name; the last ones are kept for the page.

    Args:
        process: name in each line.
        verbose: log more.
        path: a file for the log; standard error then has warnings and errors only, and what was asked for.
        has_parent: ``weir run`` started this process.
    """
    stream = logging.StreamHandler(sys.stderr)
    handlers: list[logging.Handler] = [stream, LOG_TAIL]
    if path is not None:
        stream.addFilter(_worth_showing)
        if has_parent:
            stream.addFilter(_not_repeated)
        try:
            handlers.append(
                RotatingFileHandler(path, maxBytes=_LOG_BYTES_MAX, backupCount=1, encoding="utf-8")
            )
        except OSError as error:
            # Nothing can be logged yet.
            raise SystemExit(
                f"{process}: error: --log-file {path}: {error.strerror}; name another file"
            ) from error
    flood = FloodFilter()
    entries = EntryFormatter(f"%(asctime)s {process} %(levelname)s %(message)s", "%H:%M:%S")
    for handler in handlers:
        handler.setFormatter(entries)
        if not verbose:
            handler.addFilter(flood)
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=handlers)
    # What nobody has foreseen would go to standard error as it is, with secrets and control characters of data.
    sys.excepthook = _unforeseen
    threading.excepthook = lambda ended: _unforeseen(ended.exc_type, ended.exc_value, ended.exc_traceback)


def _unforeseen(
    kind: type[BaseException], error: BaseException | None, trace: types.TracebackType | None
) -> None:
    if error is None or issubclass(kind, KeyboardInterrupt | SystemExit):
        return
    logging.getLogger(__name__).critical(
        "an error that nobody has foreseen in thread %s",
        threading.current_thread().name,
        exc_info=(kind, error, trace),
    )


def _worth_showing(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING or record.name == SHOWN_LOGGER


def _not_repeated(record: logging.LogRecord) -> bool:
    return record.name != REPEATED_LOGGER


def begin_identity(role: str, loaded: LoadedConfig, hosts: Mapping[str, str]) -> None:
    """Take on who this process is, before it connects or listens; called once, by entry points.

    Args:
        role: a value of ``weir.security.roles.Role``.
        loaded: the settings.
        hosts: what it listens on, by setting.

    Raises:
        ConfigError: certificates or the secret cannot be read, or it would listen beyond this machine without any.
    """
    from weir.security.identity import begin, check_reach
    from weir.security.roles import Role

    section = loaded.config.security
    for setting, host in hosts.items():
        check_reach(host, setting, section)
    begin(Role(role), section)


def settings(
    path: Path | None, set_flags: list[str], overrides: dict[str, str], *, tells_of_absence: bool = True
) -> LoadedConfig:
    """Read config.json, ``WEIR_...`` variables, ``--set`` flags and named flags (the last one wins); log warnings.

    ``tells_of_absence``: warn where there is no config.json.

    Raises:
        ConfigError: something is wrong with any of them.
    """
    # Not at the top: the console command starts processes before it needs anything of this.
    from weir.config import load_config, parse_set_flags

    loaded = load_config(
        path, os.environ, {**parse_set_flags(set_flags), **overrides}, tells_of_absence=tells_of_absence
    )
    for warning in loaded.warnings:
        logging.getLogger("weir.config").warning(warning)
    return loaded


def settle_memory() -> None:
    """Switch the garbage collector on, for what comes from here on: what has been imported lives for ever."""
    gc.freeze()
    gc.enable()


def keep_freed_memory() -> None:
    """Let the C library keep freed blocks below 64 MiB for the next ones, instead of handing them back to the kernel.

    Batches and messages are blocks of megabytes. Each new one from the kernel is cleared page by page when it is first
    written: more than half of the CPU of rows with a payload of 200 bytes. What is kept is bounded by the most
    that was in use. A C library without this setting stays as it is.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        if library.mallopt(_M_MMAP_THRESHOLD, _KEPT_BLOCK_BYTES):
            library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def parameter_texts(items: Sequence[str]) -> dict[str, str]:
    """The values of repeated ``--param NAME=VALUE`` flags, by name.

    Raises:
        ConfigError: a flag has no ``=``, or a name is there twice.
    """
    pairs: dict[str, str] = {}
    for item in items:
        name, separator, value = item.partition("=")
        if not separator or not name:
            raise ConfigError(f"--param {item}: expected NAME=VALUE, for example --param load_ms=5")
        if name in pairs:
            first, second = redacted({name: [pairs[name], value]})[name]
            raise ConfigError(f"--param {name} is given twice, as {first!r} and as {second!r}; give it once")
        pairs[name] = value
    return pairs


def run(name: str, main: Callable[[], int]) -> NoReturn:
    """Call ``main`` and end the process with its exit code; print our errors as ``NAME: error: ...``.

    An error of the job's own code comes after its traceback.
    """
    try:
        code = main()
    except WeirError as error:
        sys.stdout.flush()
        if isinstance(error, JobCodeError):
            print(redacted_text(error.user_traceback), file=sys.stderr)
        print(f"{name}: error: {one_entry(redacted_text(str(error)))}", file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        code = INTERRUPTED_EXIT_CODE
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)
