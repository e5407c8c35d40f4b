"""A step with every kind of state, and questions about it."""

import polars as pl
import pyarrow as pa

import weir
from weir.operators.queries.answering import answer_one, answer_range, asked_state
from weir.operators.queries.reading import StoredReading
from weir.protocol.queries import Question
from weir.state.tables.stamps import UNDATED

GROUPS = 4
#: Of the step, when its states are asked for.
WATERMARK_MS = 53


def table_of(page):
    """The batches of a page, together."""
    return pa.Table.from_batches(list(page.batches()))


class Everything(weir.KeyedProcess):
    number = weir.ValueState(pl.Int64)
    ratio = weir.ValueState(pl.Float64)
    good = weir.ValueState(pl.Boolean)
    day = weir.ValueState(pl.Date)
    text = weir.ValueState(pl.String)
    short = weir.ValueState(pl.Int64, ttl=weir.Ttl("10ms"))
    items = weir.ListState(pl.Int64)
    names = weir.MapState(pl.String, pl.Int64)
    numbers = weir.MapState(pl.Int64, pl.String)
    prices = weir.VersionedState(pl.Int64, retention="30ms")
    windows = weir.WindowState(pl.Int64, retention="30ms")
    visits = weir.SessionState(pl.Int64, retention="30ms")

    def process(self, key, row, context):
        return ()


def build():
    flow = weir.Dataflow("asked", max_parallelism=GROUPS)
    source = weir.JsonLines("none", schema={"k": str, "v": int, "f": float, "d": pl.Decimal(9, 2)})
    keyed = flow.source("rows", source).key_by("k")
    keyed.process("all", Everything, {"k": str}).sink("all_out", weir.Blackhole())
    numbers = {"total": weir.sum("v"), "least": weir.min("f"), "mean": weir.mean("v")}
    decimals = {"paid": weir.sum("d"), "most": weir.max("d"), "mean_paid": weir.mean("d")}
    keyed.aggregate("sums", n=weir.count(), **numbers, **decimals).sink("sums_out", weir.Blackhole())
    return flow.build()


class InRounds:
    """Scans are read when the first one is needed, all that have begun by then: as of a database."""

    rounds = 0
    bounds: frozenset = frozenset()

    def get_many(self, keys):
        self.rounds += 1
        return super().get_many(keys)

    def scan(self, start, stop, *, reverse=False):
        self._waiting = [*getattr(self, "_waiting", []), (start, stop, reverse)]
        return self._entries((start, stop, reverse), super().scan(start, stop, reverse=reverse))

    def _entries(self, which, found):
        if which in self._waiting:
            self.rounds += 1
            # Of a key group and state; groups share requests where the rest is the same.
            self.bounds |= {(start[4:], stop[4:], reverse) for start, stop, reverse in self._waiting}
            self._waiting = []
        yield from found


class Reading(StoredReading):
    """A store as it is."""

    def __init__(self, backend, watermark_ms=UNDATED, expired=False):
        self.watermark_ms = watermark_ms
        self._backend, self._expired, self.numbers = backend, expired, {}

    def get_many(self, keys):
        return self._backend.get_many(keys)

    def number_of(self, state):
        return self.numbers[state]

    def check(self):
        pass

    def scan(self, start, stop, *, reverse=False):
        return self._backend.scan(start, stop, reverse=reverse)

    def is_expired(self, stamp):
        return self._expired


def ask(graph, written, state, key, reading=None, **given):
    backend, numbers = written
    question = Question("all", state, key, **given)
    asked = asked_state(graph, question)
    group = asked.group_of(asked.keys.encode(key))
    return answer_one(asked, reading or Reading(backend, WATERMARK_MS), numbers[state], group, question)


def page(graph, written, state, **given):
    backend, numbers = written
    question = Question("all", state, None, "checkpoint", **given)
    asked = asked_state(graph, question)
    return answer_range(
        asked, Reading(backend, WATERMARK_MS), numbers[state], range(GROUPS), question, lambda: None
    )
