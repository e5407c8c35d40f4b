"""Three queries of Nexmark with state over one auction that is read from files: windows, a join of windows, and the
updated result of a join."""

from dataclasses import dataclass, field
from pathlib import Path

import weir
from experiments.held_source import held
from weir.examples import nexmark
from weir.examples.nexmark_streams import Auction

QUERIES = ("q5", "q8", "q9")
#: Rows of the slowest stream come as fast as those of the others, by event time.
SHARES = {"bid": 46, "auction": 3, "person": 1}


@dataclass
class FiledAuction(Auction):
    """The streams as files of JSON lines, at a pace."""

    directory: str = ""
    rate: float = 0.0
    release: str = ""
    _read: dict[str, weir.Stream] = field(default_factory=dict)

    def _stream(self, name, stream):
        if stream not in self._read:
            schema = weir.Nexmark(stream, events=1).schema
            path = str(Path(self.directory) / f"{stream}.jsonl")
            source = weir.JsonLines(
                path, schema=schema, event_time="date_time", rate=self.rate * SHARES[stream] / 50
            )
            watermark = weir.bounded_out_of_orderness("2s", idle_timeout="10m")
            rows = held(source, self.release)
            self._read[stream] = self.flow.source(name, rows, watermark=watermark)
        return self._read[stream]


def build(directory: str, output: str, rate: float, release: str, parallelism: int = 2) -> weir.Dataflow:
    flow = weir.Dataflow("auction")
    auction = FiledAuction(flow, 0, directory=directory, rate=rate, release=release)
    for query in QUERIES:
        result = nexmark.QUERIES[query](auction)
        result.rebalance().sink(f"out_{query}", weir.JsonLinesSink(f"{output}-{query}"), parallelism=1)
    return flow
