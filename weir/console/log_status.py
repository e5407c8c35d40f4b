"""What ``weir log status`` prints."""

from __future__ import annotations

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from weir.process.printable import one_entry
from weir.rpc.log_status import LogStatus, PartitionStatus


def print_status(status: LogStatus, *, as_json: bool) -> None:
    """Print the state of a log, as a table or as JSON."""
    if as_json:
        print(orjson.dumps(status.as_json(), option=orjson.OPT_INDENT_2).decode())
        return
    console = Console(highlight=False)
    brokers = ", ".join(f"{number} at {address}" for number, address in sorted(status.brokers.items()))
    console.print(f"brokers: {brokers or 'none'}")
    if status.drained_ids:
        console.print(f"drained: {', '.join(map(str, status.drained_ids))}")
    table = Table("partition", "leader", "epoch", "first", "committed", "replicas (records behind)")
    for each in status.partitions:
        table.add_row(
            f"{each.topic}/{each.partition}",
            str(each.leader_id) if each.leader_id else "nobody",
            str(each.epoch),
            str(max((replica.first_offset for replica in each.replicas), default=0)),
            str(each.commit_offset),
            _replicas(each),
        )
    if status.partitions:
        console.print(table)
    for each in status.partitions:
        for replica in each.replicas:
            if replica.trouble:
                _say(
                    console,
                    f"{each.topic}/{each.partition}, broker {replica.broker_id} began anew: {replica.trouble}",
                )
    if status.trouble:
        _say(console, f"this is what one broker knows: {status.trouble}")


def _say(console: Console, text: str) -> None:
    """Print what names files and quotes errors: neither markup nor what controls a terminal."""
    console.print(Text(one_entry(text)))


def _replicas(partition: PartitionStatus) -> str:
    texts = []
    for number in partition.replica_ids:
        found = [each for each in partition.replicas if each.broker_id == number]
        if not found:
            texts.append(f"{number} away")
            continue
        behind = max(partition.commit_offset - found[0].end_offset, 0)
        texts.append(f"{number} ({behind})" if found[0].is_member else f"{number} ({behind}, is filled)")
    moves = f"; become {', '.join(map(str, partition.target_ids))}" if partition.target_ids else ""
    return ", ".join(texts) + moves
