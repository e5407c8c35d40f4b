"""Joins of every kind, alone and with steps behind them that look at time."""

import polars as pl

import weir
from tests.equal.job_form import Job, joined, windowed

HOWS = ("inner", "left", "right", "full", "semi", "anti")
WITHIN = {"within": ("-3s", "2s")}
BOUNDS = {
    "within": WITHIN,
    "later": {"within": ("1s", "2s")},
    "between": {"between": ("at", "to")},
    "window": {"window": weir.tumbling("5s")},
    "ttl": {"ttl": "2500ms"},
}
AS_OF, ALL = {"method": "join_as_of"}, {"method": "join_all", "of": ("left", "right", "third")}
SELF, ODD = {"of": ("left", "left")}, {"of": ("odd", "odd")}
THREE = {"window": weir.tumbling("3s")}

LATE_SIDES = ("late_left", "late_right")
#: Settings and side outputs.
ALONE = {
    **{
        f"join_{by}_{how}": (bounds | {"how": how}, LATE_SIDES)
        for by, bounds in BOUNDS.items()
        for how in HOWS
    },
    "join_sliding": ({"window": weir.sliding("4s", "2s")}, ()),
    "join_self": (SELF | {"within": ("1ms", "1s")}, ()),
    "as_of_left": (AS_OF | {"how": "left"}, ("late_left",)),
    "as_of_inner": (AS_OF | {"how": "inner"}, ("late_left",)),
    "join_all_within": (ALL | {"within": "1s"}, ("late_1", "late_2", "late_3")),
    "join_all_window_inner": (ALL | THREE | {"how": "inner"}, ()),
    "join_all_window_left": (ALL | THREE | {"how": "left"}, ()),
    "odd_join": (ODD | {"within": ("-10s", "10s"), "how": "full"}, ()),
    "odd_as_of": (ODD | AS_OF, ()),
}
#: Settings, then the window over what is selected of it: by which key, of which column the total.
BY_RIGHT = (pl.col("v_right").fill_null(-1) % 3, pl.col("v_right"))
BY_LEFT = (pl.col("v") % 3, pl.col("v_right"))
NEAR = {"key": "t", "within": ("-1s", "1s")}
BEFORE_WINDOWS = {
    "join_then_others": (WITHIN | {"how": "full"}, BY_RIGHT, weir.tumbling("5s")),
    "join_then_sessions": (WITHIN | {"how": "full"}, BY_RIGHT, weir.session("500ms")),
    "join_all_then_windows": (
        ALL | THREE | {"how": "left"},
        (pl.col("v") % 3, pl.col("v_3")),
        weir.tumbling("1s"),
    ),
    "as_of_then_windows": (AS_OF, BY_LEFT, weir.tumbling("1s")),
    "null_keys_left": (NEAR | {"how": "left"}, (pl.col("k") % 2, pl.col("v_right")), weir.tumbling("1s")),
    "null_keys_full": (NEAR | {"how": "full"}, (pl.col("k") % 2, pl.col("v_right")), weir.tumbling("1s")),
    "null_keys_as_of": (AS_OF | {"key": "t"}, (pl.col("k") % 2, pl.col("v_right")), weir.tumbling("1s")),
}


def alone(settings, sides):
    """A job of ``ALONE``."""
    return Job(lambda s, name: joined(s, name, **settings), sides)


def before_windows(settings, selected, window):
    """A job of ``BEFORE_WINDOWS``."""
    key, value = selected

    def last_step(s, name):
        rows = joined(s, f"{name}_in", **settings).select(f"{name}_s", m=key, w=value)
        return windowed(s, name, rows, window, "m", {"n": weir.count(), "total": weir.sum("w")})

    return Job(last_step, ("late",))


def of_tables(method, every, **settings):
    """A job that joins tables without bounds, of every so many rows of each source."""

    def last_step(s, name):
        tables = [
            getattr(s, source).filter(f"{name}_{source}", pl.col("v") % divisor == 0).key_by("k")
            for source, divisor in every.items()
        ]
        return getattr(tables[0], method)(name, *tables[1:], parallelism=s.parallelism, **settings)

    return Job(last_step, compare="rows" if settings["how"] == "inner" else "folded")


def join_of_windows(s, name):
    left, right = (
        windowed(s, f"{name}_{of}", getattr(s, of), weir.tumbling("4s"), aggregates={"n": weir.count()})
        for of in ("left", "right")
    )
    settings = {"window": weir.tumbling("4s"), "how": "full", "parallelism": s.parallelism}
    return left.key_by("k").join(name, right.key_by("k"), **settings)


def join_then_windows(s, name):
    rows = joined(s, f"{name}_in", how="left", **WITHIN)
    aggregates = {"n": weir.count(), "m": weir.count("v_right")}
    return windowed(s, name, rows, weir.tumbling("5s"), aggregates=aggregates)


TWENTIETH = {"left": 20, "right": 20, "third": 20}
JOBS = {
    **{name: alone(*form) for name, form in ALONE.items()},
    **{name: before_windows(*form) for name, form in BEFORE_WINDOWS.items()},
    **{f"join_tables_{how}": of_tables("join", {"left": 3, "right": 5}, how=how) for how in HOWS},
    "join_all_tables": of_tables("join_all", TWENTIETH, how="left"),
    "join_of_windows": Job(join_of_windows),
    "join_then_windows": Job(join_then_windows, ("late",)),
}
