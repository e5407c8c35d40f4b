"""The last entries of this process's log, for the page: as they are written, without credentials."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass

#: Entries that are kept, and characters of each.
ENTRIES_MAX, CHARACTERS_MAX = 400, 2_000
#: Under this name is logged who did what, from where: that is for those who may operate only.
AUDIT_LOGGER = "weir.audit"


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An entry, as it is written."""

    text: str
    #: Whether it was logged under ``AUDIT_LOGGER``.
    is_audit: bool = False


class LogTail(logging.Handler):
    """A handler that keeps the last entries in memory, and writes none; at most some 800 kB."""

    def __init__(self) -> None:
        super().__init__()
        self._entries: deque[LogEntry] = deque(maxlen=ENTRIES_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep an entry; called by the logger."""
        try:
            text = self.format(record)
        except Exception:
            self.handleError(record)
            return
        cut = text[:CHARACTERS_MAX]
        whole = cut if len(cut) == len(text) else f"{cut} ..."
        self._entries.append(LogEntry(whole, record.name == AUDIT_LOGGER))

    def last(self, entries_max: int) -> list[LogEntry]:
        """The last entries, oldest first; any thread may ask. 0: none."""
        # A copy of a deque fails if another thread adds to it meanwhile, which it does with this lock.
        self.acquire()
        try:
            entries = list(self._entries)
        finally:
            self.release()
        return entries[max(len(entries) - max(entries_max, 0), 0) :]


#: Of this process; ``set_up_logging`` lets it hear what is logged.
LOG_TAIL = LogTail()
