"""Callers who ask one key after the other over HTTP, in a process of their own; for the benchmark of questions."""

from __future__ import annotations

import asyncio
import random
import time

_SEED = 7


def ask_all(
    port: int, questions_per_s: float, keys: int, callers: int, duration_s: float
) -> tuple[list[float], str, float]:
    """Ask on a schedule; a late answer makes the following ones of its caller late.

    Args:
        port: of a process of the job on this machine.
        questions_per_s: of all callers.
        keys: number of different keys.
        callers: connections, each of which asks one question at a time.
        duration_s: of the schedule.

    Returns:
        Latencies in ms, each from when the question was due; the first refusal or ""; CPU seconds of this process.
    """
    began_s = time.process_time()
    asked = asyncio.run(_ask_all(port, callers / questions_per_s, keys, callers, duration_s))
    latencies_ms = [latency for each, _ in asked for latency in each]
    failure = next((failure for _, failure in asked if failure), "")
    return latencies_ms, failure, time.process_time() - began_s


async def _ask_all(
    port: int, interval_s: float, keys: int, callers: int, duration_s: float
) -> list[tuple[list[float], str]]:
    return await asyncio.gather(
        *(_ask(port, interval_s, keys, duration_s, number) for number in range(callers))
    )


async def _ask(
    port: int, interval_s: float, keys: int, duration_s: float, number: int
) -> tuple[list[float], str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    chance = random.Random(_SEED + number)
    latencies_ms: list[float] = []
    failure = ""
    due_s = time.monotonic()
    end_s = due_s + duration_s
    while due_s < end_s and not failure:
        due_s += interval_s
        await asyncio.sleep(max(due_s - time.monotonic(), 0))
        key = chance.randint(1, keys)
        writer.write(f"GET /state/count/count/server-{key} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        body = await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
        latencies_ms.append((time.monotonic() - due_s) * 1e3)
        # A key that has not come yet is an answer, too.
        if head.split(b" ", 2)[1] not in (b"200", b"404"):
            failure = body.decode()
    writer.close()
    await writer.wait_closed()
    return latencies_ms, failure
