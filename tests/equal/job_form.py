"""The form of the jobs of this folder, and the steps of which they are made."""

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

import weir

FEW = {"n": weir.count(), "total": weir.sum("v")}
AGGREGATES = FEW | {
    "texts": weir.count("t"),
    "least": weir.min("v"),
    "even": weir.count().where(pl.col("v") % 2 == 0),
    "first": weir.first("v"),
    "last": weir.last("v"),
    "two": weir.largest("v", 2),
    "values": weir.count_distinct("to"),
}


@dataclass(frozen=True)
class Job:
    """A job: ``last_step(streams, name)`` adds its steps, of which the last one has this name, and returns its stream.

    Attributes:
        sides: side outputs of the last step that are compared, too.
        compare: "rows": as they are; "folded": what a changelog comes to.
    """

    last_step: Callable
    sides: tuple[str, ...] = ()
    compare: str = "rows"


class Streams:
    """What jobs are made of: streams by the names of sources; ``source(name)`` adds one when a job first reads it.

    Attributes:
        parallelism: of steps by key.
        puts_aside: rows at which a function raises go to the dead letters.
    """

    def __init__(self, source, parallelism, puts_aside):
        self._source = source
        self.parallelism = parallelism
        self.puts_aside = puts_aside

    def __getattr__(self, name):
        stream = self._source(name)
        setattr(self, name, stream)
        return stream


def windowed(s, name, stream, window, key="k", aggregates=FEW, **settings):
    """A window of a stream by key; ``settings`` are those of the window."""
    opened = stream.key_by(key).window(window, **settings)
    return opened.aggregate(name, parallelism=s.parallelism, **aggregates)


def joined(s, name, method="join", of=("left", "right"), key="k", **settings):
    """A join of these sources by ``join``, ``join_as_of`` or ``join_all``."""
    first, *others = (getattr(s, source).key_by(key) for source in of)
    return getattr(first, method)(name, *others, parallelism=s.parallelism, **settings)
