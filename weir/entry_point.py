"""What every command shares: logging to standard error, and errors as one line with an exit code."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from weir.config import LoadedConfig, load_config, parse_set_flags
from weir.errors import JobCodeError, WeirError

# gRPC's core writes lines of its own to standard error, such as on a busy port; we report what matters ourselves.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

#: Exit code after Ctrl-C, as shells expect it.
INTERRUPTED_EXIT_CODE = 130


def set_up_logging(process: str, *, verbose: bool) -> None:
    """Log to standard error, one line per event, with the process's name."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format=f"%(asctime)s {process} %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
        stream=sys.stderr,
    )


def settings(path: Path | None, set_flags: list[str], overrides: dict[str, str]) -> LoadedConfig:
    """Read config.json, ``WEIR_...`` variables, ``--set`` flags and named flags (the last one wins); log warnings.

    Raises:
        ConfigError: something is wrong with any of them.
    """
    loaded = load_config(path, os.environ, {**parse_set_flags(set_flags), **overrides})
    for warning in loaded.warnings:
        logging.getLogger("weir.config").warning(warning)
    return loaded


def run(name: str, main: Callable[[], int]) -> NoReturn:
    """Call ``main`` and end the process with its exit code; print our errors as ``NAME: error: ...``.

    An error of the job's own code comes after its traceback.
    """
    try:
        code = main()
    except WeirError as error:
        sys.stdout.flush()
        if isinstance(error, JobCodeError):
            print(error.user_traceback, file=sys.stderr)
        print(f"{name}: error: {error}", file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        code = INTERRUPTED_EXIT_CODE
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)
