"""Requests of gRPC that are no message, or hold what nobody can mean: one clear answer, and no traceback in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from weir.errors import WeirError
from weir.redaction import redacted_text

log = logging.getLogger(__name__)

#: What a handler raises of a request that is not as it must be. ``context.abort`` raises none of them.
FORESEEN = (
    WeirError,
    DecodeError,
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    OverflowError,
    AttributeError,
)
_TEXT_MAX = 500


class NoMessage:
    """What stands in the place of a request that could not be read."""

    def __init__(self, error: Exception) -> None:
        self.text = f"malformed request: {error}"


def forgiving(read: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """Return a function that reads a request, or returns NoMessage."""
    if read is None:
        return None

    def reads(content: bytes) -> Any:
        try:
            return read(content)
        except DecodeError as error:
            return NoMessage(error)

    return reads


def answer_of(error: Exception) -> tuple[grpc.StatusCode, str]:
    """Return code and text for an error of :data:`FORESEEN`."""
    if isinstance(error, WeirError):
        code = grpc.StatusCode.UNAVAILABLE if error.retryable else grpc.StatusCode.FAILED_PRECONDITION
        return code, redacted_text(str(error))[:_TEXT_MAX]
    # It may be a mistake of ours: with log_level DEBUG there is all of it.
    log.debug("a request was refused as malformed", exc_info=error)
    text = redacted_text(f"malformed request: {type(error).__name__}: {error}")
    return grpc.StatusCode.INVALID_ARGUMENT, text[:_TEXT_MAX]
