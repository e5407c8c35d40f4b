"""What a small batch costs: CPU per batch at a paced source and at a keyed consumer, with cold caches.

``python -m benchmarks.small_batches`` runs the two stages of ``jobs.throughput`` in one thread, one poll of
the source every few ms as the open loop at 10,000 events/s has them, and overwrites the caches between polls, because
that is what the other threads of a task manager do. No gRPC here: its threads are measured by the transport benchmark.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
import time
from pathlib import Path

from weir.clock import SystemClock

# As in a task manager.
os.environ.setdefault("POLARS_MAX_THREADS", "1")

import numpy as np

from benchmarks.events_file import events_directory
from benchmarks.results import BenchmarkError
from task_manager.exchange.channels import ChannelLimits, CreditGate, LocalChannel
from task_manager.exchange.inbox import Inbox
from task_manager.exchange.output import Output
from task_manager.exchange.output_edge import OutputEdge
from task_manager.exchange.writer import BatchPolicy
from weir.author.operator import OperatorContext
from weir.dataflow.loading import load_job
from weir.operators.chain import OperatorChain
from weir.operators.registry import create_operator, create_reader
from weir.plan.graph import PhysicalGraph, Stage
from weir.plan.stages import physical_graph
from weir.protocol.routing import initial_table
from weir.specs import SourceSpec
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import UNNAMED, StateTables
from weir.types import SubtaskId

_RATE, _PARALLELISM = 10_000.0, 2
_GROUPS = 128
_SLEEP_S = 0.003
#: The input lasts as long as polls do not take longer than this in the mean.
_POLL_S_MAX = 0.05
#: A short run gets input for so long, so that a busy machine does not come to its end.
_INPUT_S_MIN = 60.0
#: More than the second-level cache of common processors.
_CACHE_BYTES = 4 << 20
_WARM_UP_POLLS = 100


class _Stages:
    """Subtask 0 of the source stage, and one consumer that takes what goes to subtask 0."""

    def __init__(self, graph: PhysicalGraph, job_start_us: int) -> None:
        source, consumer = graph.stages
        edge = graph.output_edges(0)[0]
        self._inboxes = [Inbox() for _ in range(_PARALLELISM)]
        limits = ChannelLimits(1024, 64 << 20, 50.0)
        channels = {
            index: LocalChannel(CreditGate(limits, inbox, SystemClock()), inbox, channel)
            for index, (inbox, channel) in enumerate(
                zip(self._inboxes, graph.output_channels(SubtaskId(0, 0), edge), strict=True)
            )
        }
        table = initial_table(1, _PARALLELISM, graph.logical.max_parallelism).group_to_subtask
        output = Output(
            [OutputEdge(edge, channels, BatchPolicy(32_768, 10.0), table)],
            # On a busy machine one of the first polls has more rows than there is credit for.
            lambda timeout_s: self.consume(),
            SystemClock(),
        )
        spec = source.nodes[0].spec
        assert isinstance(spec, SourceSpec)
        self._reader = create_reader(spec)
        self._source = _chain(source, 1, output, job_start_us)
        self._reader.look_ahead(self._source.look_ahead)
        self._reader.open(_context(source, 0, job_start_us))
        self._consumer = _chain(consumer, 0, Output([], _never_waits, SystemClock()), job_start_us)

    def poll(self) -> int | None:
        """One poll and what follows from it, down to the channels; rows, None at the end."""
        polled = self._reader.poll(32_768)
        rows = 0
        if polled.due is not None:
            self._source.process_block(*polled.due)
            rows = polled.due.stop - polled.due.start
        elif polled.batch is not None:
            self._source.process(polled.batch)
            rows = polled.batch.num_rows
        return None if polled.finished else rows

    def consume(self) -> None:
        """What one consumer does with it."""
        for index, inbox in enumerate(self._inboxes):
            while (delivery := inbox.poll(0.0)) is not None:
                if index == 0:
                    self._consumer.process(delivery.element)
                delivery.release()

    def close(self) -> None:
        """Release files."""
        self._reader.close()
        self._source.close()
        self._consumer.close()


def _context(
    stage: Stage, node_index: int, job_start_us: int, tables: StateTables | None = None
) -> OperatorContext:
    return OperatorContext(
        job_name="small_batches",
        operator_name=stage.nodes[node_index].name,
        stage_index=stage.index,
        subtask_index=0,
        parallelism=_PARALLELISM,
        job_start_us=job_start_us,
        tables=None if tables is None else tables.of(stage.nodes[node_index].name, {UNNAMED: 0}),
    )


def _chain(stage: Stage, first_node: int, output: Output, job_start_us: int) -> OperatorChain[Output]:
    tables = StateTables(MemoryBackend(), 64 << 20, 128)
    operators = [
        (create_operator(stage.nodes[index].spec), _context(stage, index, job_start_us, tables))
        for index in range(first_node, len(stage.nodes))
    ]
    chain = OperatorChain(operators, output, lambda: None, tables)
    chain.open()
    return chain


def _never_waits(timeout_s: float) -> None:
    raise AssertionError("nothing is sent without credit here")


def measure(polls: int, keys: int, directory: Path) -> dict[str, float]:
    """CPU µs of this thread per poll that gave rows: median and 10th percentile, by stage.

    Raises:
        BenchmarkError: the machine was so busy that the input ended before.
    """
    events = int(_RATE * max(_POLL_S_MAX * (polls + _WARM_UP_POLLS), _INPUT_S_MIN))
    parameters = {
        "input": str(events_directory(events, keys)),
        "parallelism": _PARALLELISM,
        "rate": _RATE,
        "sink": "latency",
        "output": str(directory),
    }
    given = {name: str(value) for name, value in parameters.items()}
    graph = physical_graph(load_job("jobs.throughput", given, {"max_parallelism": _GROUPS}).graph)
    with contextlib.closing(_Stages(graph, time.time_ns() // 1000)) as stages:
        costs_ns = _costs_ns(stages, polls + _WARM_UP_POLLS)
    costs_us = np.array(costs_ns[_WARM_UP_POLLS:]) / 1e3
    p10, p50 = np.percentile(costs_us, [10, 50], axis=0).round(1).tolist()
    return {
        "polls": len(costs_us),
        "source_p50_us": p50[0],
        "source_p10_us": p10[0],
        "consumer_p50_us": p50[1],
        "consumer_p10_us": p10[1],
    }


def _costs_ns(stages: _Stages, polls: int) -> list[tuple[int, int]]:
    """CPU of this thread at the source and at the consumer, for every poll that gave rows."""
    caches = np.zeros(_CACHE_BYTES, dtype=np.uint8)
    costs_ns: list[tuple[int, int]] = []
    while len(costs_ns) < polls:
        time.sleep(_SLEEP_S)
        caches += 1
        began_ns = time.thread_time_ns()
        rows = stages.poll()
        polled_ns = time.thread_time_ns()
        stages.consume()
        if rows is None:
            raise BenchmarkError("the input ended too soon: this machine is too busy to measure anything")
        if rows:
            costs_ns.append((polled_ns - began_ns, time.thread_time_ns() - polled_ns))
    return costs_ns


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--polls", type=int, default=1000)
    parser.add_argument("--keys", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weir-small-batches-") as directory:
        print(json.dumps(measure(options.polls, options.keys, Path(directory))))


if __name__ == "__main__":
    main()
