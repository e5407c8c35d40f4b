"""The demos of the store over Cassandra that came before ours: their data, and what they found."""

from __future__ import annotations

import textwrap

import pytest

import weir
import weir.testing
from tests.weir.state.cassandra.countries import COUNTRIES
from weir.examples import punctuators

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
