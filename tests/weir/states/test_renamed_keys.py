"""Another name of a key column is refused with how to say that it is only a name; said so, the state goes on."""

import re

import polars as pl
import pytest

import weir
from weir import testing

SCHEMA = {"k": str, "v": int, "at": int}
ROWS = [{"k": "ab"[number % 2], "v": number, "at": 1_000 * number} for number in range(6)]


class Counted(weir.KeyedProcess):
    n = weir.ValueState(int, default=0)

    def process_batch(self, batch, context):
        keys = context.keys(batch)
        self.n.put(keys.distinct, self.n.get(keys.distinct) + 1)
        yield batch


STEPS = {
    "aggregate": lambda stream: stream.aggregate("step", n=weir.count()),
    "different values": lambda stream: stream.aggregate("step", n=weir.count_distinct("v")),
    "windows": lambda stream: stream.window(weir.tumbling("1m")).aggregate("step", n=weir.count()),
    "sessions": lambda stream: stream.window(weir.session("1m")).aggregate("step", n=weir.count()),
    "first": lambda stream: stream.deduplicate("step"),
    "top": lambda stream: stream.top("step", by="v", rows=2),
    "process": lambda stream: stream.process("step", Counted),
    "join": lambda stream: stream.join("step", stream, within=("0s", "9s")),
}


def flow_of(step, key, renamed=None):
    flow = weir.Dataflow("keys")
    rows = flow.source("rows", weir.JsonLines("unused", schema=SCHEMA, event_time="at"))
    named = rows.select("named", "v", **{key: pl.col("k")})
    step(named.key_by(key, renamed_from=renamed)).sink("out", weir.Collect())
    return flow


@pytest.mark.parametrize("name", STEPS)
def test_a_key_column_with_another_name_is_refused_with_the_way_to_say_so(name):
    with testing.start(flow_of(STEPS[name], "k")) as job:
        job.push("rows", ROWS)
        savepoint = job.savepoint()
    mend = re.escape('say key_by("user", renamed_from={"user": "k"})')
    with (
        pytest.raises(weir.WeirError, match=rf"step 'step': .*{mend}"),
        testing.start(flow_of(STEPS[name], "user"), from_savepoint=savepoint),
    ):
        pass
    if name == "top":
        # Its rows have other columns.
        return
    with testing.start(flow_of(STEPS[name], "user", {"user": "k"}), from_savepoint=savepoint) as job:
        job.push("rows", ROWS)
