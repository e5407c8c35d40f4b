"""Errors of a broker on which a caller acts differently."""

from __future__ import annotations

from weir.errors import StateError


class LogWriteError(StateError):
    """An entry could not be written, and nothing of it is left: a full disk. The next one may succeed."""

    retryable = True


class LogDamagedError(StateError):
    """Stored entries are not those that were written: the replica has to begin anew and be filled by others."""
