"""What the first and last texts of windows cost, beside those of integers in the same process."""

import statistics
import time

import pyarrow as pa
import pytest

import weir

ROWS, BATCH = 10_000, 4_096
WINDOWS = {
    "tumbling": weir.tumbling("1s"),
    "sliding": weir.sliding("4s", "1s"),
    "session": weir.session("700ms"),
}
TABLE = pa.table(
    {"at": [10 * n for n in range(ROWS)], "v": range(ROWS), "t": [f"text-{n}" for n in range(ROWS)]}
)


class Tables(weir.Source):
    def __init__(self, keys):
        self.table = TABLE.append_column("k", pa.array([n * 7 % keys for n in range(ROWS)]))

    def read(self, split, position):
        for at in range(position or 0, ROWS, BATCH):
            yield self.table.slice(at, BATCH), min(at + BATCH, ROWS)


def took(window, column, keys):
    flow = weir.Dataflow("cost")
    source = weir.UserSource(lambda: Tables(keys), schema={"k": int, "at": int, "v": int, "t": str})
    rows = flow.source("rows", source, event_time="at")
    told = rows.key_by("k").window(window).aggregate("out", first=weir.first(column), last=weir.last(column))
    began_s = time.process_time()
    assert len(weir.run(told)["out"]) >= keys
    return time.process_time() - began_s


@pytest.mark.parametrize("keys", [5, 100])
@pytest.mark.parametrize("kind", WINDOWS)
def test_texts_cost_a_few_times_as_much_as_integers(kind, keys):
    """Windows of 20 rows or more, and of one row; twice as much where nothing else runs."""
    window = WINDOWS[kind]
    ratios = [took(window, "t", keys) / took(window, "v", keys) for _ in range(4)]
    assert statistics.median(ratios[1:]) < 5, ratios
