"""How log entries are written: without control characters of data, and not thousands of the same kind."""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass

from weir.process.printable import one_entry
from weir.redaction import redacted_text

#: Entries of one kind in so many seconds; of more, only their number is told, with the next one.
ENTRIES_MAX, WINDOW_S = 200, 10.0
#: Kinds that are remembered.
_KINDS_MAX = 1_000
#: Of a message that was put together before it was logged, its beginning tells the kind.
_KIND_LENGTH = 60


class EntryFormatter(logging.Formatter):
    """Formats an entry: texts from data neither forge another one nor control a terminal; no credentials stay."""

    def format(self, record: logging.LogRecord) -> str:
        """Called by handlers."""
        return one_entry(redacted_text(super().format(record)))


@dataclass(slots=True)
class _Kind:
    since_s: float
    entries: int = 0
    left_out: int = 0


class FloodFilter(logging.Filter):
    """Leaves out what comes too often; shared by the handlers of a process, which all write or leave out the same."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: OrderedDict[tuple[str, int, str], _Kind] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Called by handlers, each under its own lock; a lost count does no harm."""
        known: bool | None = getattr(record, "weir_is_written", None)
        if known is None:
            known = record.weir_is_written = self._is_written(record)
        return known

    def _is_written(self, record: logging.LogRecord) -> bool:
        key = (record.name, record.levelno, str(record.msg)[:_KIND_LENGTH])
        kind = self._kinds.pop(key, None)
        if kind is None or record.created - kind.since_s >= WINDOW_S:
            left_out = 0 if kind is None else kind.left_out
            kind = _Kind(record.created)
            if left_out:
                record.msg = f"{record.getMessage()} (and {left_out:,} entries like this, left out)"
                record.args = None
        self._kinds[key] = kind
        if len(self._kinds) > _KINDS_MAX:
            self._kinds.popitem(last=False)
        kind.entries += 1
        if kind.entries > ENTRIES_MAX:
            kind.left_out += 1
            return False
        return True
