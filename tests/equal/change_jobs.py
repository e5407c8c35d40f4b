"""Steps whose results are changes, and steps behind them."""

import polars as pl

import weir
from tests.equal.job_form import AGGREGATES, Job, windowed


def step(kind, s, name, stream, *key, **settings):
    """A step by key: ``top``, ``deduplicate`` or ``aggregate``."""
    return getattr(stream.key_by(*key), kind)(name, parallelism=s.parallelism, **settings)


#: Kind, source, key, settings, and how it is compared.
ALONE = {
    "top": ("top", "left", ("k",), {"by": "to", "rows": 3}, "folded"),
    "top_ranked": (
        "top",
        "left",
        ("k",),
        {"by": "to", "rows": 2, "rank": "place", "ascending": True},
        "folded",
    ),
    "deduplicate_first": ("deduplicate", "left", ("k", "to"), {}, "rows"),
    "deduplicate_within": ("deduplicate", "left", ("k",), {"within": "3s"}, "rows"),
    "odd_within": ("deduplicate", "odd", ("k",), {"within": "2s"}, "rows"),
    "deduplicate_last": ("deduplicate", "left", ("k",), {"keep": "last"}, "folded"),
    "deduplicate_by": ("deduplicate", "left", ("k",), {"keep": "first", "by": "to"}, "folded"),
    "running": ("aggregate", "left", ("k",), AGGREGATES, "rows"),
}


def alone(kind, of, key, settings, compare):
    """A job of ``ALONE``."""
    return Job(lambda s, name: step(kind, s, name, getattr(s, of), *key, **settings), compare=compare)


def running_changes(s, name):
    top = step("top", s, f"{name}_in", s.left, "k", by="to", rows=3)
    aggregates = {"n": weir.count(), "least": weir.min("v"), "total": weir.sum("to")}
    return step("aggregate", s, name, top, "k", **aggregates)


def dearest_of_latest(s, name):
    latest = step("deduplicate", s, f"{name}_in", s.left, "to", keep="last")
    return step("top", s, name, latest, "k", by="to", rows=2)


def windows_of_changes(s, name):
    leads = step("top", s, f"{name}_in", s.left, "k", by="to", rows=1)
    never_late = weir.bounded_out_of_orderness("1000h", idle_timeout="1000h")
    timed = leads.assign_event_time(f"{name}_t", "to", watermark=never_late)
    return windowed(s, name, timed, weir.tumbling("5s"))


def as_of_changes(s, name):
    """Changes as they come from a source, each with its time."""
    kind = (
        pl.when(pl.col("v") % 4 == 3)
        .then(pl.lit("delete"))
        .when(pl.col("v") % 4 == 2)
        .then(pl.lit("update_before"))
    )
    table = s.right.with_columns(f"{name}_c", _change=kind.otherwise(pl.lit("insert")))
    return s.left.key_by("k").join_as_of(name, table.key_by("k"), parallelism=s.parallelism)


def join_changes(s, name):
    left, right = (
        step("deduplicate", s, f"{name}_{rest}", stream, "k", "to", keep="last")
        .filter(f"{name}_f{rest}", pl.col("v") % 4 == rest)
        .key_by("k")
        for rest, stream in enumerate((s.left, s.right))
    )
    return left.join(name, right, how="full", parallelism=s.parallelism)


JOBS = {
    **{name: alone(*form) for name, form in ALONE.items()},
    "running_changes": Job(running_changes, compare="folded"),
    "dearest_of_latest": Job(dearest_of_latest, compare="folded"),
    "windows_of_changes": Job(windows_of_changes),
    "as_of_changes": Job(as_of_changes),
    "join_changes": Job(join_changes, compare="folded"),
}
