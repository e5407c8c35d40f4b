"""A schema registry over real HTTP: the part of Confluent's protocol that clients of values use."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class RegistryServer:
    """Use as a context manager; ``user``: what it asks for, "user:password"."""

    def __init__(self, user=""):
        self.schemas, self.subjects, self.asked = {}, {}, []
        self.user, self.status = user, None
        #: Code, body and what it says of its length, instead of an answer.
        self.raw = None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def add(self, schema, kind="AVRO", subject="t-value", references=()):
        """Register a schema; returns its number."""
        number = len(self.schemas) + 1
        self.schemas[number] = {"schema": schema, "schemaType": kind, "references": list(references)}
        self.subjects.setdefault(subject, []).append(number)
        return number

    def answer(self, method, path, body):
        parts = [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]
        if self.status is not None:
            return self.status, {"message": "it is told to"}
        match method, parts:
            case "GET", ["schemas", "ids", number] if int(number) in self.schemas:
                return 200, self.schemas[int(number)]
            case "GET", ["subjects", subject, "versions", version] if subject in self.subjects:
                return 200, self.schemas[self.subjects[subject][int(version) - 1]]
            case "POST", ["subjects", subject, "versions"]:
                given = json.loads(body)
                for number, known in self.schemas.items():
                    if known["schema"] == given["schema"] and number in self.subjects.get(subject, ()):
                        return 200, {"id": number}
                if subject in self.subjects:
                    return 409, {"error_code": 409, "message": "Schema being registered is incompatible"}
                return 200, {"id": self.add(given["schema"], given.get("schemaType", "AVRO"), subject)}
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def _handler(self):
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self._serve("GET", b"")

            def do_POST(self):
                self._serve("POST", self.rfile.read(int(self.headers["Content-Length"])))

            def _serve(self, method, body):
                registry.asked.append(f"{method} {self.path}")
                wanted = "Basic " + base64.b64encode(registry.user.encode()).decode()
                if registry.user and self.headers.get("Authorization") != wanted:
                    code, answer = 401, {"message": "Unauthorized"}
                else:
                    code, answer = registry.answer(method, self.path, body)
                data = json.dumps(answer).encode()
                length = len(data)
                if registry.raw is not None:
                    code, data, *told = registry.raw
                    length = told[0] if told else len(data)
                self.send_response(code)
                self.send_header("Content-Length", str(length))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        return Handler
