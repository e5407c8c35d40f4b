"""Errors of the log's clients: a caller acts differently on what is surely absent and on what may be there."""

from __future__ import annotations

from weir.errors import FailureKind, WeirError


class LogRejectedError(WeirError):
    """A record was surely not written; the message says why."""


class LogTruncatedError(WeirError):
    """The record at which to go on is not kept any more, or was never there; the message names both offsets."""

    failure_kind = FailureKind.PERMANENT


class LogUnknownError(WeirError):
    """Nobody has said in time whether a record was written. It is there once, or not at all."""

    retryable = True
    failure_kind = FailureKind.OUTAGE
