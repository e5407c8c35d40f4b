"""What starts further task managers when slots are missing: a command or a URL of the configuration."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import IO
from urllib.parse import urlsplit

from weir.config import AutoscalerConfig
from weir.redaction import redacted_text

log = logging.getLogger("control_plane")

_COMMAND_S_MAX, _REPLY_S_MAX = 60.0, 10.0
_OUTPUT_BYTES_MAX = 300


@dataclass(frozen=True, slots=True)
class MissingSlots:
    """What the hook is told."""

    job_id: str
    slots_missing: int
    reason: str


#: Tells who can start task managers; blocks, and never raises.
Hook = Callable[[MissingSlots], None]


def hook_of(config: AutoscalerConfig) -> Hook | None:
    """The hook of the configuration; None: there is none."""
    if not config.hook_command and not config.hook_url:
        return None

    def call(missing: MissingSlots) -> None:
        if config.hook_command:
            _run(config.hook_command, missing)
        if config.hook_url:
            _post(config.hook_url, missing)

    return call


def _run(command: tuple[str, ...], missing: MissingSlots) -> None:
    told = {
        "WEIR_JOB_ID": missing.job_id,
        "WEIR_SLOTS_MISSING": str(missing.slots_missing),
        "WEIR_REASON": missing.reason,
    }
    try:
        # No pipe: a task manager that it has started has its end, too, and must neither be waited for nor break.
        with tempfile.TemporaryFile() as output:
            ended = subprocess.run(
                command,
                env={**os.environ, **told},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_COMMAND_S_MAX,
                check=False,
            )
            said = _end_of(output)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        log.warning("autoscaler.hook_command %s: %s", command[0], error)
        return
    level = logging.WARNING if ended.returncode else logging.INFO
    log.log(
        level, "autoscaler.hook_command ended with exit code %d: %s", ended.returncode, said or "no output"
    )


def _end_of(output: IO[bytes]) -> str:
    begin = max(output.seek(0, os.SEEK_END) - _OUTPUT_BYTES_MAX, 0)
    output.seek(begin)
    return output.read(_OUTPUT_BYTES_MAX).decode(errors="replace").strip()


def _post(url: str, missing: MissingSlots) -> None:
    request = urllib.request.Request(
        url, json.dumps(asdict(missing)).encode(), {"content-type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=_REPLY_S_MAX) as reply:
            log.info("autoscaler.hook_url answered %d", reply.status)
    except (OSError, ValueError) as error:
        # HTTPError and URLError are OSErrors.
        # The path of such an address is often all the secret that there is.
        host = redacted_text(urlsplit(url)._replace(path="", query="", fragment="").geturl())
        log.warning("autoscaler.hook_url at %s: %s", host, error)
