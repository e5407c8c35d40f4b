"""None, assigned to a value state, takes the value away, whatever its type and whether it expires."""

import pytest

import weir
from weir import testing


@pytest.mark.parametrize("ttl", [None, "1h"])
@pytest.mark.parametrize(("kind", "value"), [(int, 7), (float, 7.5), (bool, True), (str, "seven")])
def test_none_takes_a_value_away(kind, value, ttl):
    """The default counts again, and a value that comes later is kept."""
    seen = []

    class Kept(weir.KeyedProcess):
        kept = weir.ValueState(kind) if ttl is None else weir.ValueState(kind, ttl=weir.Ttl(ttl))

        def process(self, key, row, context):
            before = self.kept.value
            self.kept.value = None if row["clears"] else value
            seen.append((before, self.kept.value))

    flow = weir.Dataflow("job")
    columns = {"k": str, "clears": bool, "n": int}
    rows = flow.source("rows", weir.JsonLines("/absent", schema=columns, event_time="n"))
    rows.key_by("k").process("st", Kept).sink("out", weir.Collect())
    given = [
        {"k": "a", "clears": clears, "n": n} for n, clears in enumerate([True, False, True, False, False])
    ]
    testing.run(flow, {"rows": given})
    assert seen == [(None, None), (None, value), (value, None), (None, value), (value, value)]
