"""Waits until replicas have moved; ``weir log drain`` and ``weir log balance`` call it."""

from __future__ import annotations

import sys
import threading

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from weir.log.admin import log_status

_POLL_S = 0.2


def wait_for_moves(brokers: str, partitions: int) -> int:
    """Show how many partitions have moved until all have; returns the exit code.

    Args:
        brokers: ``host:port`` of a broker, or of several with commas.
        partitions: that change.

    Raises:
        ConnectionLostError: no broker answers. The move goes on.
    """
    pause = threading.Event()
    columns = TextColumn("moving partitions"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress:
        task = progress.add_task("", total=partitions)
        while left := sum(bool(each.target_ids) for each in log_status(brokers).partitions):
            progress.update(task, completed=max(partitions - left, 0))
            pause.wait(_POLL_S)
    print(f"{partitions} partitions have moved" if partitions else "all replicas are where they are to be")
    return 0
