"""One operator with a state of each kind; what it emits says what is in all of them."""

import polars as pl

import weir
from experiments.held_source import held

COLUMNS = {
    "id": int,
    "server": str,
    "n": int,
    "text": str,
    "recent": pl.List(pl.Int64),
    "digits": pl.List(pl.Int64),
    "most": int,
    "total": float,
    "then": weir.Nullable(int),
    "windows": pl.List(pl.Int64),
    "visit": pl.List(pl.Int64),
    "extra": int,
}
KEPT = 50
#: Rows of a server that are so far from each other are of one visit.
GAP = 30


class EveryState(weir.KeyedProcess):
    count = weir.ValueState(pl.Int64, default=0)
    text = weir.ValueState(pl.String, default="")
    recent = weir.ListState(pl.Int64)
    digits = weir.MapState(pl.Int64, pl.Int64)
    most = weir.ReducingState(pl.Int64, max)
    total = weir.AggregatingState(pl.Float64, 0.0, lambda kept, value: kept + value, lambda kept: kept)
    versions = weir.VersionedState(pl.Int64, retention="2s")
    windows = weir.WindowState(pl.Int64, retention="2s")
    visits = weir.SessionState(pl.Int64, retention="2s")

    def process(self, key, row, context):
        number = row["id"]
        self.count.value += 1
        self.text.value = f"{self.text.value[-20:]}.{number}"
        self.recent.append(number)
        if len(self.recent) > KEPT:
            self.recent.popleft()
        if number % 997 == 0:
            self.recent.clear()
        self.digits[number % 10] = self.digits.get(number % 10, 0) + 1
        self.most.add(number % 1_000)
        self.total.add(number / 2)
        self.versions.put(number, number)
        window = number - number % 500
        self.windows.put(self.windows.get(window, 0) + 1, window)
        visit = [number, number, 1]
        for found in list(self.visits.find(number - GAP, number + GAP)):
            visit = [found.start_ms, number, found.value + 1]
            self.visits.delete(found.start_ms, found.end_ms)
        self.visits.put(visit[2], visit[0], visit[1])
        yield {
            "id": number,
            "server": key[0],
            "n": self.count.value,
            "text": self.text.value,
            "recent": list(self.recent),
            "digits": [part for item in self.digits.items() for part in item],
            "most": self.most.value,
            "total": self.total.result(),
            "then": self.versions.get(number - 1_000),
            "windows": [count for _, count in self.windows.fetch(number - 1_500)],
            "visit": visit,
            "extra": self.count_extra(),
        }

    def count_extra(self):
        return 0


class WithAnother(EveryState):
    extra = weir.ValueState(pl.Int64, default=0)

    def count_extra(self):
        self.extra.value += 1
        return self.extra.value


class WithAnotherType(EveryState):
    text = weir.ListState(pl.String)


VERSIONS = {"first": EveryState, "added": WithAnother, "changed": WithAnotherType}


def build(
    input: str,
    output: str,
    release: str,
    version: str = "first",
    parallelism: int = 2,
    rate: float = 1_500,
    max_parallelism: int = 16,
) -> weir.Dataflow:
    flow = weir.Dataflow("states", max_parallelism=max_parallelism)
    source = held(
        weir.JsonLines(input, schema={"id": int, "server": str}, rate=rate, event_time="id"), release
    )
    states = (
        flow.source("events", source)
        .key_by("server")
        .process("states", VERSIONS[version], COLUMNS, parallelism=parallelism)
    )
    states.rebalance().sink("lines", weir.JsonLinesSink(output), parallelism=1)
    return flow
