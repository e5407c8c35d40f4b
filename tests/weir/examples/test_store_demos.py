"""The demos of the store over Cassandra that came before ours: their data, and what they found."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

import weir
import weir.testing
from tests.weir.state.cassandra.countries import COUNTRIES
from weir.examples import country_table, punctuators

LINES = [{"line": line} for line in textwrap.wrap(" ".join(COUNTRIES), 60)]


@pytest.mark.parametrize("parts", [1, 3])
def test_the_clock_looks_at_words(parts: int) -> None:
    flow = punctuators.build(parts=parts)
    with weir.testing.start(flow, {"lines": LINES}, collect_sinks=True) as job:

        def looks(ms: int) -> dict[str, list[tuple[str, int]]]:
            before = len(job.rows("out"))
            job.advance_time(ms)
            found: dict[str, list[tuple[str, int]]] = {}
            for row in job.rows("out").to_dicts()[before:]:
                found.setdefault(row["look"], []).append((row["word"], row["count"]))
            return {look: sorted(words) for look, words in found.items()}

        assert looks(4_999) == {}
        assert looks(1) == {"prefix bel": [("belarus", 1), ("belgium", 1)]}
        between = ["netherlands", "northmacedonia", "norway", "poland", "portugal", "romania"]
        found = looks(7_000)
        assert found["netherlands to romania"] == [(word, 1) for word in between]
        job.push("lines", [{"line": "Belgium"}])
        job.checkpoint()
        job.restart()
        found = looks(5_000)
        assert found["prefix bel"] == [("belarus", 1), ("belgium", 2)]
        assert sum(count for _, count in found["count"]) == len(COUNTRIES) == 51
        found = looks(4_000)
        assert [word for word, _ in found["all"]] == COUNTRIES
        # The looks at 60 s coincide.
        found = looks(39_000)
        assert {"prefix bel", "netherlands to romania"} <= set(found)


class Told(country_table.Latest):
    """What the table has after each row."""

    def process(self, key: tuple[Any, ...], row: Any, context: weir.KeyContext) -> Iterator[dict[str, Any]]:
        super().process(key, row, context)
        yield {"code": key[0], "name": self.name.value}


def test_the_table_of_countries_keeps_the_last_name_of_each_code() -> None:
    given = [("be", "Belgia"), ("nl", "Netherlands"), ("be", "Belgium"), ("nl", None), ("lt", "Lithuania")]
    rows = [{"code": code, "name": name} for code, name in given]
    # The table of the example returns nothing: it is asked. So a step beside it does.
    flow = country_table.build(parallelism=2)
    columns = {"code": str, "name": weir.Nullable(str)}
    beside = weir.Dataflow("told")
    source = weir.JsonLines("none", schema=columns)
    beside.source("rows", source).key_by("code").process("told", Told, columns).sink("out", weir.Blackhole())
    assert weir.testing.run(flow, {"rows": rows})["table"].to_dicts() == []
    with weir.testing.start(beside, {"rows": rows[:3]}, collect_sinks=True) as job:
        job.checkpoint()
        job.restart()
        job.push("rows", [*rows[3:], {"code": "be", "name": "Belgium"}])
        last = {row["code"]: row["name"] for row in job.rows("out").to_dicts()}
    assert last == {"be": "Belgium", "nl": None, "lt": "Lithuania"}
