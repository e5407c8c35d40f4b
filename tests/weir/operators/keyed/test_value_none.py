"""None, assigned to a value state, takes the value away, whatever its type and whether it expires."""

import pytest

import weir
from tests.weir.state.database_backend import subtask_state
from tests.weir.state.retained_steps import Step
from weir import testing
from weir.config.stores import RocksDbConfig
from weir.state.stores.rocksdb import open_store

KINDS = [(int, 7), (float, 7.5), (bool, True), (str, "seven")]


@pytest.mark.parametrize("ttl", [None, "1h"])
@pytest.mark.parametrize(("kind", "value"), KINDS)
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


def check_store(backend, apply):
    """As above, with an empty cache for each row: what counts is in the store."""

    def opened():
        ttls = {"plain": None, "timed": weir.Ttl("1h", time="processing")}
        states = {
            f"{kind.__name__}_{name}": weir.ValueState(kind, ttl=ttl)
            for kind, _ in KINDS
            for name, ttl in ttls.items()
        }
        return Step(backend, states)

    seen = []
    for clears in (True, False, True, False, False):
        step = opened()
        with step.at("a"):
            for kind, value in KINDS:
                for name in ("plain", "timed"):
                    handle = step.handles[f"{kind.__name__}_{name}"]
                    seen.append((handle.value is None, clears or handle.value in (None, value)))
                    handle.value = None if clears else value
                    assert handle.value == (None if clears else value)
        step.tables.flush()
        apply()
    cases = 2 * len(KINDS)
    assert seen == [(is_none, True) for is_none in (True, True, False, True, False) for _ in range(cases)]


def test_a_value_is_taken_away_from_rocksdb(tmp_path):
    store = open_store(tmp_path / "store", RocksDbConfig(), fresh=True)
    check_store(store, lambda: None)
    store.close()


@pytest.mark.service
@pytest.mark.parametrize("is_applied", [False, True])
def test_a_value_is_taken_away_from_cassandra(cassandra_port, is_applied):
    names = [f"{kind.__name__}_{name}" for kind, _ in KINDS for name in ("plain", "timed")]
    ids = {name: 2 + number for number, name in enumerate(sorted(names))}
    with subtask_state(cassandra_port, ids, 1) as (store, apply):
        check_store(store, apply if is_applied else lambda: None)
