"""The latest name of each country, by its code: a table that is asked from outside, and has no sink of its own.

weir run weir.examples.country_table --store cassandra
curl localhost:9008/keyvalue/be                                           # while it runs, for 27 s
curl "localhost:9008/state/table/name?from=lt&to=nl"

With ``--set taskManager.cassandra.states=table/name.layout=global`` each row lies for itself: there are no ranges then,
only keys, all and their number.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import weir


class Latest(weir.KeyedProcess):
    """Keeps the last name of a code; one without a name is taken away."""

    name = weir.ValueState(str)

    def process(self, key: tuple[Any, ...], row: Any, context: weir.KeyContext) -> None:
        """Keep it."""
        if row["name"] is None:
            self.name.clear()
        else:
            self.name.value = row["name"]


def build(
    input: str = "",
    rate: float = 1,
    parallelism: int = 1,
    bootstrap: str = "",
    topic: str = "countries",
) -> weir.Dataflow:
    """The dataflow.

    Args:
        input: JSON lines with ``code`` and ``name``; "": the countries of the European Union.
        rate: rows per second of ``input``; the table is asked while it is read.
        parallelism: subtasks that keep the table.
        bootstrap: addresses of Kafka's brokers; "": the rows are in ``input``.
        topic: whose records are JSON objects with ``code`` and ``name``.
    """
    path = input or str(Path(__file__).with_name("european_union.jsonl"))
    schema = {"code": str, "name": weir.Nullable(str)}
    flow = weir.Dataflow("country_table")
    rows = (
        weir.Kafka(bootstrap=bootstrap, topics=topic, schema=schema)
        if bootstrap
        else weir.JsonLines(path, schema=schema, rate=rate)
    )
    keyed = flow.source("rows", rows).key_by("code")
    keyed.process("table", Latest, {"code": str}, parallelism=parallelism).sink("out", weir.Blackhole())
    return flow
