"""Traces of checkpoints and rescales that have ended, made from what is recorded of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from control_plane.job.running_job import RunningJob
from weir.clock import Clock, monotonic_ms, wall_ms
from weir.config import TracesConfig
from weir.errors import ConfigError
from weir.protocol.checkpoints.checkpoint_model import CheckpointRecord
from weir.protocol.rescale.rescale_log import RescaleLog
from weir.protocol.spans import Span, checkpoint_span, rescale_span
from weir.redaction import redacted_text

_LIBRARY = "opentelemetry"


class SpanSender(Protocol):
    """Where spans go; no method blocks but :meth:`close`, and none raises."""

    def send(self, span: Span) -> None:
        """Take a span with those within it."""
        ...

    def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        ...


#: Makes a sender; the attributes tell whose traces these are.
OpenSender = Callable[[Mapping[str, str]], SpanSender]


def sender_of(config: TracesConfig) -> OpenSender | None:
    """What makes the sender that the settings ask for; None: they ask for none.

    Raises:
        ConfigError: the package that it needs is not installed.
    """
    if not config.url:
        return None
    try:
        # What it loads takes a quarter of a second, and most processes send no traces.
        from control_plane.watch.otlp import OtlpSender
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(_LIBRARY):
            raise
        raise ConfigError(
            "traces.endpoint is set, but OpenTelemetry's library is not installed; run: pip install 'weir[traces]'"
        ) from error
    return lambda attributes: OtlpSender(config.url, {**attributes, "service.name": config.service_name})


class Traces:
    """Sends a trace for each checkpoint and each rescale that ends in this process; used in the event loop."""

    def __init__(self, job: RunningJob, clock: Clock, rescales: RescaleLog, sender: SpanSender) -> None:
        """Rescales of an earlier process are not told again."""
        self._job, self._clock, self._rescales, self._sender = job, clock, rescales, sender
        self._told_rescales = max((_number(report) for report in rescales.to_list()), default=0)

    def checkpoint_ended(self, record: CheckpointRecord) -> None:
        """Called by the checkpointer."""
        offset_ms = wall_ms(self._clock) - monotonic_ms(self._clock)
        self._send(checkpoint_span(record, offset_ms, self._job.graph.name_of))

    def look(self) -> None:
        """Send those rescales that have ended; called once a second, and at the end."""
        for report in reversed(self._rescales.to_list()):
            span = rescale_span(report) if _number(report) > self._told_rescales else None
            if span is not None:
                self._told_rescales = _number(report)
                self._send(span)

    def close(self) -> None:
        """Send what is left; blocks for some seconds at most."""
        self._sender.close()

    def _send(self, span: Span) -> None:
        attributes = {
            name: redacted_text(value) if isinstance(value, str) else value
            for name, value in span.attributes.items()
        }
        attributes["weir.generation"] = self._job.identity.generation
        self._sender.send(replace(span, attributes=attributes, cause=redacted_text(span.cause)))


def _number(report: Mapping[str, object]) -> int:
    return int(str(report["id"]))
