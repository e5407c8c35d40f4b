"""Links of random chains: a step or a few, from streams of keys and values to one such stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import polars as pl

import weir

#: Every link gives these columns; a table ``_change``, too.
_SCHEMA: dict[str, Any] = {"k": int, "v": int}
_PRIME = 1_000_003
_PAUSE_MS, _EARLY = 3_000, "1s"


class Pauses(weir.KeyedProcess):
    """Tells the sum of what came before a pause."""

    total = weir.ValueState(pl.Int64, default=0)
    ends = weir.ValueState(pl.Int64)

    def process(self, key: Any, row: Any, context: Any) -> None:
        """Move the end, unless it is later."""
        self.total.value += row["v"]
        end, before = context.event_time_ms + _PAUSE_MS, self.ends.value
        if before is None or before < end:
            if before is not None:
                context.timers.delete(before)
            self.ends.value = end
            context.timers.register(end)

    def on_timer(self, key: Any, time_ms: int, context: Any) -> Iterator[dict[str, Any]]:
        """Tell it, and begin anew."""
        yield {"k": key[0], "v": self.total.value}
        self.total.clear()
        self.ends.clear()


def _only(stream: Any, name: str, key: pl.Expr, value: pl.Expr) -> Any:
    change = ["_change"] if stream.is_changelog else []
    return stream.select(f"{name}_only", *change, k=key, v=value)


def _windows(name: str, given: list[Any], settings: dict[str, Any], parallelism: int) -> Any:
    told_by = given[0].key_by("k").window(**settings)
    made = told_by.aggregate(name, n=weir.count(), s=weir.sum("v"), parallelism=parallelism)
    return _only(made, name, (pl.col("k") + pl.col("n")) % 5, pl.col("s"))


def _early(name: str, given: list[Any], settings: dict[str, Any], parallelism: int) -> Any:
    early = {"early": weir.every(_EARLY, time="event"), "results": "changelog"}
    return _windows(name, given, settings | early, parallelism)


def _join(name: str, given: list[Any], settings: dict[str, Any], parallelism: int) -> Any:
    left, right = given[0].key_by("k"), given[1].rename(f"{name}_w", {"v": "w"}).key_by("k")
    made = left.join(name, right, parallelism=parallelism, **settings)
    value = pl.col("v").fill_null(-7)
    if settings["how"] not in ("semi", "anti"):
        value = (value * 3 + pl.col("w").fill_null(-5)) % _PRIME
    return _only(made, name, pl.col("k"), value)


def _late_side(name: str, given: list[Any], settings: dict[str, Any], parallelism: int) -> Any:
    settings = dict(settings)
    output = settings.pop("output")
    left, right = given[0].key_by("k"), given[1].key_by("k")
    made = left.join(name, right, parallelism=parallelism, **settings)
    made.sink(f"{name}_told", weir.Blackhole())
    return made.side_output(output).pass_through(f"{name}_late")


def _join_all(name: str, given: list[Any], settings: dict[str, Any], parallelism: int) -> Any:
    first, *others = given
    renamed = [
        stream.rename(f"{name}_w{number}", {"v": f"w{number}"}).key_by("k")
        for number, stream in enumerate(others)
    ]
    made = first.key_by("k").join_all(name, *renamed, parallelism=parallelism, **settings)
    value = pl.col("v") * 3 + pl.col("w0").fill_null(-5) * 7 + pl.col("w1").fill_null(-9)
    return _only(made, name, pl.col("k"), value % _PRIME)


def _filter(name: str, given: list[Any], settings: dict[str, Any], parallelism: int) -> Any:
    return given[0].filter(name, pl.col("v") % settings["divisor"] != 0)


def _other_key(name: str, given: list[Any], settings: dict[str, Any], parallelism: int) -> Any:
    return _only(given[0], name, (pl.col("k") + pl.col("v")) % settings["divisor"], pl.col("v"))


def _several(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for number in range(row["v"] % 3):
        yield {"k": row["k"] + number, "v": row["v"]}


async def _twice(row: dict[str, Any]) -> dict[str, Any]:
    return {"k": row["k"], "v": row["v"] * 2}


def _flat_map(name: str, given: list[Any], settings: dict[str, Any], parallelism: int) -> Any:
    return given[0].flat_map(name, _several, _SCHEMA)


def _map_async(name: str, given: list[Any], settings: dict[str, Any], parallelism: int) -> Any:
    return given[0].map_async(name, _twice, _SCHEMA, ordered=False)


def _union(name: str, given: list[Any], settings: dict[str, Any], parallelism: int) -> Any:
    first, second = (
        stream.key_by("k").pass_through(f"{name}_{number}", parallelism=parallelism)
        for number, stream in enumerate(given)
    )
    return first.union(name, second)


def _pauses(name: str, given: list[Any], settings: dict[str, Any], parallelism: int) -> Any:
    keyed = given[0].key_by("k")
    return keyed.process(name, Pauses, _SCHEMA, in_time_order=True, parallelism=parallelism)


def _first(name: str, given: list[Any], settings: dict[str, Any], parallelism: int) -> Any:
    return given[0].key_by("k").deduplicate(name, by="v", parallelism=parallelism, **settings)


def _top(name: str, given: list[Any], settings: dict[str, Any], parallelism: int) -> Any:
    return given[0].key_by("k").top(name, by="v", rows=2, parallelism=parallelism)


def _totals(name: str, given: list[Any], settings: dict[str, Any], parallelism: int) -> Any:
    keyed = given[0].key_by("k")
    made = keyed.aggregate(name, n=weir.count(), s=weir.sum("v"), parallelism=parallelism)
    return _only(made, name, pl.col("k"), (pl.col("s") * 31 + pl.col("n")) % _PRIME)


#: By kind: name, inputs, settings, parallelism.
LINKS: dict[str, Callable[[str, list[Any], dict[str, Any], int], Any]] = {
    "windows": _windows,
    "early": _early,
    "join": _join,
    "join of tables": _join,
    "late side": _late_side,
    "join all": _join_all,
    "filter": _filter,
    "filter of table": _filter,
    "other key": _other_key,
    "flat map": _flat_map,
    "map async": _map_async,
    "union": _union,
    "pauses": _pauses,
    "first": _first,
    "top": _top,
    "totals": _totals,
}
