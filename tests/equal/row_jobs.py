"""Bad rows, which are put aside with a reason, and inputs that have no rows for long."""

import polars as pl

import weir
from tests.equal.equal_rows import BOUND
from tests.equal.job_form import AGGREGATES, Job, joined, windowed

FIVE = weir.tumbling("5s")
#: Rows that functions cannot stand.
POISON = {31, 32}


def bad_lines(s, name):
    """Windows over the rows of a source with bad lines."""
    return windowed(s, name, s.bad, FIVE, aggregates=AGGREGATES)


def bad_times(s, name):
    """Windows over rows to which a step gives times, of which some are none."""
    time = pl.when(pl.col("v") % 7 == 3).then(None).when(pl.col("v") % 7 == 5).then(2**62).otherwise("to")
    timed = s.left.with_columns(f"{name}_w", time=time).assign_event_time(
        f"{name}_t", "time", watermark=BOUND
    )
    return windowed(s, name, timed, FIVE)


def put_aside(s, name):
    """Rows that the job itself puts aside; windows over the others."""
    is_large = pl.col("v") % 10 == 9
    s.left.filter(f"{name}_large", is_large).sink(f"{name}_letters", weir.DeadLetters("too large"))
    return windowed(s, name, s.left.filter(f"{name}_small", ~is_large), FIVE)


def union_of_quiet(s, name):
    return windowed(s, name, s.left.union(f"{name}_in", s.quiet), FIVE)


def join_of_quiet(s, name):
    return joined(s, name, of=("left", "quiet"), within=("-3s", "2s"), how="full")


class Refusing(weir.KeyedProcess):
    """A count that has been told as one more when it raises."""

    n = weir.ValueState(pl.Int64, default=0)

    def process(self, key, row, context):
        self.n.value += 1
        if row["v"] in POISON:
            raise ValueError(f"cannot stand {row['v']}")
        context.timers.register(context.event_time_ms + 1_000)
        yield {"k": key[0], "n": self.n.value}

    def on_timer(self, key, time_ms, context):
        yield {"k": key[0], "n": -self.n.value}


def taken(s, name):
    """The rows; without those that functions cannot stand, where nothing puts them aside."""
    return s.left if s.puts_aside else s.left.filter(f"{name}_taken", ~pl.col("v").is_in(list(POISON)))


def poison_of_process(s, name):
    keyed = taken(s, name).key_by("k")
    return keyed.process(name, Refusing, {"k": int, "n": int}, parallelism=s.parallelism)


JOBS = {
    "bad_lines": Job(bad_lines, ("late",)),
    "bad_times": Job(bad_times, ("late",)),
    "put_aside": Job(put_aside, ("late",)),
    "poison_of_process": Job(poison_of_process),
    "union_of_quiet": Job(union_of_quiet, ("late",)),
    "join_of_quiet": Job(join_of_quiet, ("late_left", "late_right")),
}
