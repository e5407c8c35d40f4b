"""Steps that tell every version: of a batch exactly what its rows would tell if each came alone, in their order."""

import random

import polars as pl
import pytest

import weir
from weir import testing
from weir.operators.keyed import top

ROWS = {"k": int, "n": weir.Nullable(int), "x": weir.Nullable(float), "s": str, "kind": str}
SUMS = {"rows": weir.count(), "known": weir.count("n"), "total": weir.sum("n"), "float": weir.sum("x")}
EXTREMES = {"low": weir.min("n"), "high": weir.max("x"), "middle": weir.quantile("n", 0.5)}


class Echo(weir.KeyedProcess):
    """Tells each change as it comes."""

    def process(self, key, row, context):
        yield {name: value for name, value in row.items() if not name.startswith("_")} | {
            "change": row["_change"],
            "at": context.event_time_ms,
        }


def _changes(rows):
    return rows.with_columns("changes", _change=pl.col("kind")).drop("less", "kind")


def _top(most, *, by="n", rank=None, **settings):
    return lambda rows: rows.key_by("k").top("step", by=by, rows=most, rank=rank, **settings)


STEPS = {
    "first": _top(1),
    "first, ascending": _top(1, ascending=True),
    "last": lambda rows: rows.key_by("k").deduplicate("step", keep="last", by="n"),
    "three": _top(3),
    "places": _top(4, rank="place"),
    "by texts": _top(2, by=["s", "n"], ascending=[True, False], rank="place"),
    "of changes": lambda rows: _changes(rows).key_by("k").top("step", by="n", rows=2),
    "places of changes": lambda rows: _changes(rows).key_by("k").top("step", by="n", rows=3, rank="place"),
    "last of changes": lambda rows: _changes(rows).key_by("k").deduplicate("step", keep="last", by="n"),
    "sums of changes": lambda rows: _changes(rows).key_by("k").aggregate("step", **SUMS),
    "extremes of changes": lambda rows: _changes(rows).key_by("k").aggregate("step", **EXTREMES),
    "totals": lambda rows: (
        rows.key_by("k")
        .aggregate("totals", emit="per_batch", total=weir.sum("n"))
        .with_columns("told", _change=pl.lit("insert"))
    ),
}


def _random_rows(rng, count):
    there, rows = [], []
    for _ in range(count):
        if there and rng.random() < 0.4:
            row = there.pop(rng.randrange(len(there)))
            rows.append(row | {"kind": rng.choice(["delete", "update_before"])})
            continue
        row = {
            "k": rng.randint(0, 12),
            "n": rng.choice([None, *range(8)]),
            "x": rng.choice([None, 0.5, float("inf"), *(n / 3 for n in range(5))]),
            "s": rng.choice("abc"),
        }
        if rng.random() < 0.9:
            there.append(row)
        rows.append(row | {"kind": rng.choice(["insert", "update_after"])})
    return rows


def _told(step, batches):
    flow = weir.Dataflow("versions")
    changes = STEPS[step](flow.source("rows", weir.JsonLines("rows.jsonl", schema=ROWS)))
    columns = {
        field.name: field.type if field.name == "k" else weir.Nullable(field.type)
        for field in changes.schema
        if field.name != "_change"
    }
    echo = changes.key_by("k").process("echo", Echo, columns | {"change": str, "at": int})
    echo.sink("out", weir.Collect())
    with testing.start(flow) as job:
        for rows in batches:
            job.push("rows", rows)
        return job.rows("out").to_polars()


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_a_batch_tells_what_its_rows_tell_alone(step, small, monkeypatch):
    if small:
        monkeypatch.setattr(top, "_ROWS_AT_A_TIME", 8)
        monkeypatch.setattr(top, "_TOLD_AT_A_TIME", 5)
    rng = random.Random(step)
    for _ in range(2):
        rows = _random_rows(rng, 100)
        cuts = sorted(rng.sample(range(101), 3))
        batches = [rows[a:b] for a, b in zip([0, *cuts], [*cuts, 100], strict=True) if a < b]
        alone, together = _told(step, [[row] for row in rows]), _told(step, batches)
        assert alone.height > 20
        # Rows have the time at which they were pushed.
        assert together.drop("at").equals(alone.drop("at"))
