"""Deletes folders beside the event loop: of gigabytes that takes seconds, in which a broker would be taken for dead."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import threading
from collections import deque
from pathlib import Path

from weir import threads

log = logging.getLogger("log_broker.removal")

#: What such a folder is called meanwhile: no topic begins with a dot.
_PREFIX = ".removed-"


class Remover:
    """Has a thread as long as there is something to delete. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: As many as there are replicas at most, and a few more.
        self._waiting: deque[Path] = deque()
        self._is_running = False

    def remove(self, folder: Path) -> None:
        """Take a folder out of the way at once, so that its name is free, and delete it soon.

        Raises:
            OSError: it is where it was.
        """
        gone = folder.with_name(f"{_PREFIX}{secrets.token_hex(4)}")
        os.replace(folder, gone)
        self._add([gone])

    def go_on(self, parent: Path) -> None:
        """Delete what an earlier process left of folders that it had removed there."""
        self._add(list(parent.glob(f"{_PREFIX}*")))

    def _add(self, folders: list[Path]) -> None:
        with self._lock:
            self._waiting += folders
            if self._is_running or not self._waiting:
                return
            self._is_running = True
        threads.start(self._run, "removal of folders")

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_running = False
                    return
                folder = self._waiting.popleft()
            try:
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(folder)
            except OSError as error:
                # The next start tries again.
                log.warning("%s cannot be deleted: %s", folder, error.strerror)


#: Of this process.
REMOVER = Remover()
