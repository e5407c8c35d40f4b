import numpy as np
import pyarrow as pa

from jobs.junk import JUNK_CHARACTERS, JunkRewriter, junk_value
from weir.author.operator import OperatorContext
from weir.dataflow.keyed_steps import process_states
from weir.keys.hashing import hash_keys, key_bytes
from weir.operators.registry import create_operator
from weir.rows.records import with_system_columns
from weir.specs import Aggregate, KeyedAggregateSpec, KeyedProcessSpec
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables

SCHEMA = pa.schema([pa.field("server_name", pa.string(), nullable=False)])


def batch_of(names):
    user = pa.RecordBatch.from_pydict({"server_name": names}, schema=SCHEMA)
    batch = with_system_columns(user, 1, 2)
    return batch.append_column("_key_hash", pa.array(hash_keys(key_bytes(batch, ["server_name"]))))


def opened(spec, store, state_ids):
    operator = create_operator(spec)
    tables = StateTables(store, 64 << 20, 128)
    operator.open(OperatorContext("job", spec.kind, 3, 0, 1, tables=tables.of(spec.kind, state_ids)))
    return operator, tables


def test_every_entry_of_every_key_holds_the_last_event():
    rng = np.random.default_rng(5)
    batches = [[f"server-{i}" for i in rng.integers(0, 20, 700)] for _ in range(2)]
    store = MemoryBackend()
    keys = ("server_name",)
    schema = SCHEMA.append(pa.field("count", pa.int64()))
    count, _ = opened(KeyedAggregateSpec(keys, (Aggregate("count", "count"),)), store, {"": 0})
    spec = KeyedProcessSpec(keys, lambda: JunkRewriter(2), schema, process_states("junk", JunkRewriter))
    junk, tables = opened(spec, store, {"entries": 1})
    for names in batches:
        for counted in count.process(batch_of(names)):
            (result,) = junk.process(counted)
            assert result.select(schema.names).equals(counted.select(schema.names))
    names = [name for batch in batches for name in batch]
    held = {}

    class Look(JunkRewriter):
        def process(self, key, row, context):
            held[key[0]] = dict(self.entries.items())

    tables.flush()
    looks = KeyedProcessSpec(keys, lambda: Look(2), schema, process_states("look", Look))
    rows = batch_of(sorted(set(names))).append_column("count", pa.array([0] * len(set(names))))
    list(opened(looks, store, {"entries": 1})[0].process(rows))
    assert held == {name: {i: junk_value(i, names.count(name)) for i in range(2)} for name in names}
    assert {len(value) for entries in held.values() for value in entries.values()} == {JUNK_CHARACTERS}
