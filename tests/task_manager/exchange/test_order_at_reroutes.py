"""Random rows, credit, watermarks and switches: no row comes to its owner after a time that it was before.

Rows carry the watermark as of each (``weir.rows.row_watermarks``): it comes to a consumer with the first row that
leaves for it, whatever waits for credit elsewhere.
"""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from task_manager.exchange.output import Output
from task_manager.exchange.output_edge import OutputEdge
from task_manager.exchange.writer import BatchPolicy
from tests.task_manager.exchange.made_channels import channel, edge_of
from weir.clock import SystemClock
from weir.keys.hashing import key_groups
from weir.plan.graph import Exchange
from weir.protocol.routing import initial_table, rescaled
from weir.rows import row_watermarks
from weir.rows.records import KEY_HASH_COLUMN, EndOfStream, Idle, RouteMarker, Watermark, watermarks_of

KEYS = [f"key-{number}" for number in range(12)]


class Consumer:
    """What has come to one, in order, and the table of the rows that may come."""

    def __init__(self, index: int, elements_max: int, group_to_subtask: np.ndarray) -> None:
        self.index = index
        self.link, self.inbox = channel(index, elements_max)
        self.tables = {0: group_to_subtask}
        self.version = 0
        self.watermark_ms = -1
        self.rows: list[tuple[int, int]] = []
        self.has_ended = False

    def take(self, count: int) -> None:
        while count and (delivery := self.inbox.poll(0.0)) is not None:
            self.see(delivery.element)
            delivery.release()
            count -= 1

    def see(self, element: object) -> None:
        assert not self.has_ended
        if isinstance(element, pa.RecordBatch):
            groups = key_groups(element.column(KEY_HASH_COLUMN).to_numpy(), 128)
            assert set(self.tables[self.version][groups]) == {self.index}, "the owner as of the last marker"
            column = watermarks_of(element)
            for number, at_ms in zip(element.column("n").to_pylist(), column, strict=True):
                assert at_ms >= self.watermark_ms, f"row {number} is after what it was before"
                self.watermark_ms = at_ms
                self.rows.append((number, self.version))
        elif isinstance(element, Watermark):
            assert element.time_ms >= self.watermark_ms
            self.watermark_ms = element.time_ms
        elif isinstance(element, RouteMarker):
            self.version = element.routing_version
        elif isinstance(element, EndOfStream):
            self.has_ended = True


def rows_of(numbers: range, chance: random.Random) -> pa.RecordBatch:
    """The watermark as of a row is its number."""
    columns = {"key": [chance.choice(KEYS) for _ in numbers], "n": pa.array(numbers, pa.int64())}
    return row_watermarks.with_column(pa.RecordBatch.from_pydict(columns), np.array(numbers, np.int64))


@pytest.mark.parametrize("seed", range(60))
def test_rows_come_to_their_owners_in_the_order_of_time(seed):
    chance = random.Random(seed)
    edge_key = edge_of(Exchange.HASH)
    table = initial_table(1, 2, 128)

    def consumer(index: int) -> Consumer:
        return Consumer(index, chance.choice((1, 2, 100)), table.group_to_subtask)

    consumers = [consumer(index) for index in range(2)]
    everyone = list(consumers)
    links = {each.index: each.link for each in consumers}
    policy = BatchPolicy(chance.choice((1, 5, 1000)), chance.choice((0.0, 10_000.0)))
    edge = OutputEdge(edge_key, links, policy, table.group_to_subtask)

    def give_credit(timeout_s: float) -> None:
        chance.choice(consumers).take(1)

    output = Output([edge], give_credit, SystemClock())
    number = 0
    for _ in range(60):
        match chance.randrange(6):
            case 0 | 1:
                count = chance.randrange(1, 8)
                output.emit(rows_of(range(number, number + count), chance))
                number += count
            case 2:
                output.broadcast(Watermark(number))
            case 3:
                chance.choice(consumers).take(chance.randrange(3))
                output.pump()
            case 4 if chance.random() < 0.3:
                output.broadcast(Idle())
            case 5 if chance.random() < 0.5:
                free = max(each.index for each in everyone) + 1
                kept = chance.sample(consumers, chance.randint(0, min(2, len(consumers))))
                wanted = [each.index for each in kept] + list(range(free, free + chance.randint(not kept, 2)))
                table, _ = rescaled(table, tuple(sorted(wanted)))
                new = [consumer(index) for index in wanted if index >= free]
                everyone += new
                for each in everyone:
                    each.tables[table.version] = table.group_to_subtask
                retired = [each.index for each in consumers if each not in kept]
                added = {each.index: each.link for each in new}
                output.reroute(edge_key, table.version, table.group_to_subtask, added, retired)
                consumers[:] = kept + new
    output.broadcast(Watermark(number))
    output.finish()
    for each in everyone:
        each.take(10_000)
        assert each.has_ended
    seen = sorted(row for each in everyone for row in each.rows)
    assert [row for row, _ in seen] == list(range(number)), "each row once"
    versions = [version for _, version in seen]
    assert versions == sorted(versions), "a later row under an earlier table"
    assert {each.watermark_ms for each in consumers} == {number}
