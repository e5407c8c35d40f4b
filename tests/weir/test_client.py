"""The Python client of questions, against sockets that do not do what they should."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pyarrow as pa
import pytest

import weir
from weir.errors import ConnectionLostError
from weir.questions.client import place_of
from weir.questions.json_values import arrow_column


def test_a_process_that_does_not_answer_is_waited_for_once():
    with socket.create_server(("127.0.0.1", 0)) as server:
        accepted = []

        def accept():
            while True:
                try:
                    accepted.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept)
        thread.start()
        port = server.getsockname()[1]
        with (
            weir.connect(f"127.0.0.1:{port}", timeout_s=0.05) as job,
            pytest.raises(ConnectionLostError, match=f"127.0.0.1:{port} does not answer: timed out"),
        ):
            job.state("count", "count").get("a")
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert len(accepted) == 1
    for connection in accepted:
        connection.close()


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("localhost:9018", ("localhost", 9018)),
        ("localhost", ("localhost", 9008)),
        ("http://localhost:9008/", ("localhost", 9008)),
        ("[::1]:9008", ("[::1]", 9008)),
        ("[::1]", ("[::1]", 9008)),
    ],
)
def test_an_address_is_a_host_and_a_port_or_what_browsers_have(address, place):
    assert place_of(address) == place


@pytest.mark.parametrize(
    "address",
    ["", "localhost:http", "localhost:99999", "https://localhost:9008", "localhost:9008/state", "a:b:1"],
)
def test_what_is_no_address_is_told_at_once(address):
    with pytest.raises(weir.WeirError, match="must be HOST:PORT, as in localhost:9008"):
        weir.connect(address)


def test_a_key_that_no_question_can_have_is_told():
    message, key = "null is no key that can be asked for alone", None
    with weir.connect("127.0.0.1:1") as job, pytest.raises(weir.WeirError, match=message):
        job.state("count", "count").get(key)


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        ([[1, 2], [2.5]], [1.0, 2.0, 2.5]),
        ([[], []], []),
        ([["1"], [1]], ['"1"', "1"]),
        ([[{"a": 1}], ["x", 2], []], ['{"a":1}', '"x"', "2"]),
    ],
)
def test_pages_with_values_of_different_types_are_one_frame(pages, expected):
    left = list(pages)

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self):
            values = left.pop(0)
            table = pa.table(
                {"key": pa.array(["k"] * len(values), pa.string()), "value": arrow_column(values)}
            )
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            body = bytes(sink.getvalue())
            self.send_response(200)
            self.send_header("Content-Type", "application/vnd.apache.arrow.stream")
            self.send_header("Weir-Answer", json.dumps({"continuation": "next" if left else None}))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *given):
            pass

    with HTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        with weir.connect(f"127.0.0.1:{server.server_port}") as job:
            frame = job.state("rules", "broadcast").range()
        server.shutdown()
        thread.join()
    assert frame.columns == ["key", "value"]
    assert frame["value"].to_list() == expected


def test_an_encrypted_address_is_one_where_there_are_certificates(monkeypatch, tmp_path):
    monkeypatch.setenv("WEIR_SECURITY_DIRECTORY", str(tmp_path))
    assert place_of("https://localhost:9010/") == ("localhost", 9010)
    with pytest.raises(weir.WeirError, match="must be HOST:PORT"):
        place_of("http://localhost:9010")
