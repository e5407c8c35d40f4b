"""Running counts of rows that come when a test allows them; one of them may end the process that reads it."""

import functools
import os
from pathlib import Path

import weir

ROWS, SERVERS = 400, 7
SCHEMA = {"id": int, "server": str}


def row(number):
    return {"id": number, "server": f"server-{number % SERVERS}"}


def rows(folder, position):
    """The file "allowed" has a byte for each row that may come."""
    (folder / "asked").touch()
    for number in range(position or 0, ROWS):
        while number >= (folder / "allowed").stat().st_size:
            yield None
        yield [row(number)], number + 1


def die(deadly, row):
    if row["id"] == deadly:
        os.abort()
    return row


def build(folder: Path, output: str = "out", deadly: int = -1) -> weir.Dataflow:
    flow = weir.Dataflow("damaged")
    events = flow.source("events", weir.UserSource(functools.partial(rows, folder), schema=SCHEMA))
    events = events.map("dying", functools.partial(die, deadly), schema=SCHEMA)
    events.key_by("server").count("counted", "n").sink("lines", weir.JsonLinesSink(str(folder / output)))
    return flow
