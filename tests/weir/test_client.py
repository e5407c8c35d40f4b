"""The Python client of questions, against sockets that do not do what they should."""

import socket
import threading

import pytest

import weir
from weir.errors import ConnectionLostError


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
    ("key", "message"), [(None, "null is no key that can be asked for alone"), (b"\xff", "no text in UTF-8")]
)
def test_keys_that_no_question_can_have_are_told(key, message):
    with weir.connect("127.0.0.1:1") as job, pytest.raises(weir.WeirError, match=message):
        job.state("count", "count").get(key)
