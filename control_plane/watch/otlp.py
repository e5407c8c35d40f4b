"""Sends spans to a collector by OpenTelemetry's library, as OTLP over HTTP; loaded only where there are traces."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import requests
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Status, StatusCode, Tracer, set_span_in_context

import weir
from weir.protocol.spans import Span
from weir.redaction import redacted_text

log = logging.getLogger("control_plane")

#: At its end a process waits so long at most for the collector to take the last spans.
_CLOSE_S = 3.0
_NS_PER_MS = 1_000_000


class OtlpSender:
    """Implements ``control_plane.watch.traces.SpanSender``; a thread of the library sends, and keeps 2,048 spans."""

    def __init__(self, url: str, attributes: Mapping[str, str]) -> None:
        """Connect to nothing yet.

        Args:
            url: of the collector, with the path.
            attributes: of all traces.
        """
        self._exporter = _TellingExporter(url)
        # At the end of the process nobody waits for the library: `close` has waited for as long as may be.
        self._provider = TracerProvider(resource=Resource.create(dict(attributes)), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer: Tracer = self._provider.get_tracer("weir", weir.__version__)

    def send(self, span: Span) -> None:
        """Take a span with those within it; blocks nobody."""
        self._add(span, Context())

    def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        if self._exporter.failure:
            # What nobody takes would only hold up the end.
            return
        closing = threading.Thread(target=self._provider.shutdown, name="traces-end", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)
        if closing.is_alive():
            log.warning("traces: the collector has not taken the last spans within %g s", _CLOSE_S)

    def _add(self, span: Span, context: Context) -> None:
        made = self._tracer.start_span(
            span.name, context, attributes=span.attributes, start_time=span.start_ms * _NS_PER_MS
        )
        within = set_span_in_context(made, context)
        for child in span.children:
            self._add(child, within)
        if span.cause:
            made.set_status(Status(StatusCode.ERROR, span.cause))
        made.end(span.end_ms * _NS_PER_MS)


class _TellingExporter(SpanExporter):
    """The library's exporter, which would log each attempt; this one tells when spans are lost, and when no more."""

    def __init__(self, url: str) -> None:
        self._url = redacted_text(url)
        self._session = _NotingSession()
        self._inner: SpanExporter = OTLPSpanExporter(url, session=self._session)
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
        #: Why the last spans were not taken; empty: they were.
        self.failure = ""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Called by the library's thread."""
        result = self._inner.export(spans)
        before, self.failure = self.failure, ""
        if result is not SpanExportResult.SUCCESS:
            self.failure = self._session.failure or "no answer in time"
            if not before:
                log.warning(
                    "traces: %s takes none (%s): they are lost until it does", self._url, self.failure
                )
        elif before:
            log.info("traces: %s takes them again", self._url)
        return result

    def shutdown(self) -> None:
        """Called by the library."""
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Called by the library; nothing is kept here."""
        return self._inner.force_flush(timeout_millis)


class _NotingSession(requests.Session):
    """Notes why the last request came to nothing."""

    failure = ""

    def request(self, *arguments: Any, **named: Any) -> requests.Response:
        """Called by the library's exporter."""
        try:
            reply = super().request(*arguments, **named)
        except requests.RequestException as error:
            self.failure = _reason(error)
            raise
        self.failure = "" if reply.ok else f"HTTP {reply.status_code} {reply.reason}"
        return reply


def _reason(error: BaseException) -> str:
    """Return few words: of the system's error, if there is one below those of the libraries."""
    found, below = error, error
    while (next_below := below.__cause__ or below.__context__) is not None:
        below = next_below
        if isinstance(below, OSError) and below.strerror:
            found = below
    return found.strerror if isinstance(found, OSError) and found.strerror else type(error).__name__
