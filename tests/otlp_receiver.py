"""A collector of traces over real HTTP: it decodes the protobuf of OTLP, and keeps what came."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


def attributes_of(message):
    """Attributes of a span or a resource as a dictionary."""
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in message.attributes}


class OtlpReceiver:
    """Use as a context manager; ``url`` has no path, as people write it."""

    def __init__(self):
        #: Of the answers from now on.
        self.status = 200
        #: Spans and attributes of their resources, in the order in which they came.
        self.spans, self.resources, self.paths = [], [], []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def roots(self, name):
        """Spans of this name that are in no other one, the oldest first."""
        found = [span for span in self.spans if span.name == name and not span.parent_span_id]
        return sorted(found, key=lambda span: span.start_time_unix_nano)

    def within(self, root):
        """Spans that are directly within one, in the order of time."""
        found = [span for span in self.spans if span.parent_span_id == root.span_id]
        assert {span.trace_id for span in found} <= {root.trace_id}
        return sorted(found, key=lambda span: (span.start_time_unix_nano, span.end_time_unix_nano))

    def take(self, path, kind, body):
        assert kind == "application/x-protobuf"
        # Whoever sees the path may say at once how the next one is answered.
        status = self.status
        self.paths.append(path)
        if status != 200:
            return status, b""
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(attributes_of(of_resource.resource))
            for of_scope in of_resource.scope_spans:
                self.spans.extend(of_scope.spans)
        return 200, ExportTraceServiceResponse().SerializeToString()

    def _handler(self):
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                code, answer = receiver.take(self.path, self.headers["Content-Type"], body)
                self.send_response(code)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        return Handler
