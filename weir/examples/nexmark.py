"""Queries of the Nexmark benchmark over an online auction that Weir makes up.

weir run weir.examples.nexmark --param query=q1 --param events=1000000
weir run weir.examples.nexmark --param query=q22 --param output=parts
"""

from __future__ import annotations

from collections.abc import Callable

import weir
from weir.examples import nexmark_joins, nexmark_rows, nexmark_tables, nexmark_windows
from weir.examples.nexmark_streams import Auction

Query = Callable[[Auction], weir.Stream]

#: By the name of the query.
QUERIES: dict[str, Query] = {
    "q0": nexmark_rows.q0,
    "q1": nexmark_rows.q1,
    "q2": nexmark_rows.q2,
    "q3": nexmark_joins.q3,
    "q4": nexmark_tables.q4,
    "q5": nexmark_windows.q5,
    "q6": nexmark_tables.q6,
    "q7": nexmark_windows.q7,
    "q8": nexmark_windows.q8,
    "q9": nexmark_tables.q9,
    "q10": nexmark_rows.q10,
    "q11": nexmark_windows.q11,
    "q12": nexmark_windows.q12,
    "q13": nexmark_rows.q13,
    "q14": nexmark_rows.q14,
    "q15": nexmark_windows.q15,
    "q16": nexmark_windows.q16,
    "q17": nexmark_windows.q17,
    "q18": nexmark_tables.q18,
    "q19": nexmark_tables.q19,
    "q20": nexmark_joins.q20,
    "q21": nexmark_rows.q21,
    "q22": nexmark_rows.q22,
}
#: How far streams of a query that joins them are read ahead of each other: a join keeps the rows of the one ahead.
MAX_DRIFT = dict.fromkeys(("q3", "q4", "q6", "q8", "q9", "q20"), "10m")
#: Columns that name the folders of files, where a query says so.
PARTITIONS = {"q10": ("dt", "hm")}


def build(
    query: str = "q0",
    events: int = 1_000_000,
    parallelism: int = 1,
    seed: int = 0,
    output: str = "",
    events_per_second: int = 10_000,
    rate: float = 0.0,
) -> weir.Dataflow:
    """The dataflow of one query.

    Args:
        query: one of ``QUERIES``.
        events: people, auctions and bids together.
        parallelism: subtasks of each step.
        seed: of the events.
        output: directory of the result as Parquet; "": it is counted and dropped.
        events_per_second: of event time.
        rate: events of all streams a second, by the clock; 0: as fast as possible.
    """
    if query not in QUERIES:
        raise weir.GraphError(f"query is {query!r}; there are {', '.join(QUERIES)}")
    flow = weir.Dataflow(f"nexmark_{query}")
    max_drift = MAX_DRIFT.get(query, "")
    result = QUERIES[query](Auction(flow, events, parallelism, seed, events_per_second, rate, max_drift))
    partitions = PARTITIONS.get(query, ())
    result.sink("out", weir.ParquetSink(output, partition_by=partitions) if output else weir.Blackhole())
    return flow
