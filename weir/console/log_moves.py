"""What ``weir log drain``, ``weir log balance`` and ``weir log accept-loss`` read, and wait for."""

from __future__ import annotations

import sys
import threading

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from weir.errors import ConfigError
from weir.log.admin import log_status

_POLL_S = 0.2


def partition_of(text: str) -> tuple[str, int]:
    """Read ``topic/0``.

    Raises:
        ConfigError: it is none.
    """
    topic, _, number = text.rpartition("/")
    if not topic or not number.isdecimal():
        raise ConfigError(f"{text} is no partition: give TOPIC/NUMBER, such as wal/0")
    return topic, int(number)


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
