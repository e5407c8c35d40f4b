"""``weir status``: how a running job is, as the control plane says it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from weir.errors import WeirError
from weir.process.printable import one_entry
from weir.questions.client import connect

_STYLES = {"keeps_up": "green", "limited": "bold yellow", "held_up": "yellow", "failed": "red"}


class StatusError(WeirError):
    """What answers is no control plane of this version."""


def print_status(address: str, *, as_json: bool) -> int:
    """Ask a control plane and print what it says; returns the exit code: 0, or 1 of a job that has failed.

    Args:
        address: HTTP, HOST:PORT.
        as_json: print the whole answer of ``/status``.

    Raises:
        ConnectionLostError: nobody answers.
        AskError: it is refused, or no process of Weir.
        StatusError: it is no control plane, or one of another version.
    """
    with connect(address) as connection:
        code, status = connection.ask("/status", {})
    if code != 200 or "headline" not in status:
        raise StatusError(f"{address} is not the HTTP address of a control plane; weir run names it")
    if as_json:
        print(json.dumps(status, indent=2))
    else:
        _draw(status, Console(highlight=False))
    return int(status["headline"]["verdict"] == "failed")


def _draw(status: Mapping[str, Any], console: Console) -> None:
    said = status["headline"]
    # Names and causes come from data: no markup.
    console.print(Text(one_entry(said["text"]), _STYLES.get(said["verdict"], "")), soft_wrap=True)
    table = Table(
        "stage", "subtasks", "busy", "blocked", "rows in/s", "oldest row waits", "event time behind"
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for stage in status["stages"]:
        table.add_row(*_row(stage), style="bold yellow" if stage["stage"] == said["stage"] else "")
    console.print(table)


def _row(stage: Mapping[str, Any]) -> list[Text]:
    subtasks = stage["subtasks"]
    lags = [each["watermark_lag_ms"] for each in subtasks if each["watermark_lag_ms"] is not None]
    rate = sum(each["recent_records_in_per_second"] for each in subtasks)
    cells = [
        f"{stage['stage']} {stage['name']}",
        str(stage["parallelism"]),
        f"{max((each['recent_busy_ratio'] for each in subtasks), default=0):.0%}",
        f"{max((each['recent_backpressured_ratio'] for each in subtasks), default=0):.0%}",
        f"{rate:,.0f}",
        f"{max((each['queued_age_ms'] for each in subtasks), default=0):,.0f} ms",
        f"{max(lags) / 1e3:,.1f} s" if lags else "-",
    ]
    return [Text(one_entry(cell)) for cell in cells]
