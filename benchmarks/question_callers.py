"""Callers who ask one key after the other over HTTP, in a process of their own; for the benchmark of questions."""

from __future__ import annotations

import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

_SEED = 7
#: Of answers: too many questions wait, the owner of the key is busy, or the question took too long.
LATE_STATUSES = (429, 503, 504)


@dataclass
class Asked:
    """What callers have seen."""

    #: In ms, each from when the question was due.
    latencies_ms: list[float] = field(default_factory=list)
    #: A part of each of these: how long its caller, which was free, waited for a processor itself before it asked.
    late_ms: list[float] = field(default_factory=list)
    #: The first refusal; "": there was none; and its status.
    failure: str = ""
    refused_with: int = 0
    #: Processor time of this process.
    cpu_s: float = 0.0


def ask_all(port: int, questions_per_s: float, keys: int, callers: int, duration_s: float) -> Asked:
    """Ask on a schedule, the callers in turn; a late answer makes the following ones of its caller late.

    Threads that sleep and read: an event loop wakes up to the millisecond only, and takes three times as much CPU.

    Args:
        port: of a process of the job on this machine.
        questions_per_s: of all callers.
        keys: number of different keys.
        callers: connections, each of which asks one question at a time.
        duration_s: of the schedule.
    """
    began_s, interval_s = time.process_time(), callers / questions_per_s
    start_s = time.monotonic() + interval_s
    with ThreadPoolExecutor(callers) as pool:
        asked = list(
            pool.map(
                lambda number: _ask(
                    port, start_s + number / questions_per_s, interval_s, keys, duration_s, number
                ),
                range(callers),
            )
        )
    refused = next((each for each in asked if each.refused_with), Asked())
    return Asked(
        [latency for each in asked for latency in each.latencies_ms],
        [late for each in asked for late in each.late_ms],
        refused.failure,
        refused.refused_with,
        time.process_time() - began_s,
    )


def _ask(port: int, start_s: float, interval_s: float, keys: int, duration_s: float, number: int) -> Asked:
    chance = random.Random(_SEED + number)
    seen, free_s = Asked(), start_s
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for question in range(round(duration_s / interval_s)):
            due_s = start_s + question * interval_s
            time.sleep(max(due_s - time.monotonic(), 0))
            seen.late_ms.append((time.monotonic() - max(due_s, free_s)) * 1e3)
            key = chance.randint(1, keys)
            connection.sendall(
                f"GET /state/count/count/server-{key} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
            )
            status, body = _read_answer(connection)
            free_s = time.monotonic()
            seen.latencies_ms.append((free_s - due_s) * 1e3)
            # A key that has not come yet is an answer, too.
            if status not in (b"200", b"404"):
                seen.failure, seen.refused_with = body.decode(errors="replace"), int(status)
                break
    return seen


def _read_answer(connection: socket.socket) -> tuple[bytes, bytes]:
    """Status and body; most come whole."""
    data = connection.recv(65_536)
    while b"\r\n\r\n" not in data:
        data += _more(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += _more(connection)
    return head.split(b" ", 2)[1], body


def _more(connection: socket.socket) -> bytes:
    data = connection.recv(65_536)
    if not data:
        raise ConnectionError("the connection was closed in the midst of an answer")
    return data
