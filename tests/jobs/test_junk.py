import numpy as np
import pyarrow as pa

from jobs.junk import JUNK_CHARACTERS, JunkRewriter, junk_value
from weir.keys import hash_keys, key_bytes, key_groups
from weir.operators.base import OperatorContext
from weir.operators.registry import create_operator
from weir.records import with_system_columns, without_key_hash
from weir.specs import Aggregate, KeyedAggregateSpec, KeyedProcessSpec
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import one_state

SCHEMA = pa.schema([pa.field("server_name", pa.string(), nullable=False)])


def batch_of(names):
    user = pa.RecordBatch.from_pydict({"server_name": names}, schema=SCHEMA)
    batch = with_system_columns(user, 1, 2)
    return batch.append_column("_key_hash", pa.array(hash_keys(key_bytes(batch, ["server_name"]))))


def opened(spec, store, state_id):
    operator = create_operator(spec)
    operator.open(OperatorContext("job", spec.kind, 3, 0, 1, tables=one_state(store, state_id)))
    return operator


def test_every_entry_of_every_key_holds_the_last_event():
    rng = np.random.default_rng(5)
    batches = [[f"server-{i}" for i in rng.integers(0, 20, 700)] for _ in range(2)]
    store = MemoryBackend()
    keys = ("server_name",)
    count = opened(KeyedAggregateSpec(keys, (Aggregate("count", "count"),)), store, 0)
    junk = opened(
        KeyedProcessSpec(keys, lambda: JunkRewriter(2), SCHEMA.append(pa.field("count", pa.int64()))),
        store,
        1,
    )
    for names in batches:
        for counted in count.process(batch_of(names)):
            (result,) = junk.process(counted)
            assert result.equals(without_key_hash(counted))
    junk.user.keyed_state.flush()
    state = junk.user.keyed_state
    names = [name for batch in batches for name in batch]
    for name in set(names):
        groups = key_groups(hash_keys(key_bytes(batch_of([name]), ["server_name"])), 128)
        for index in range(2):
            (value,) = state.get_many(groups, [name.encode() + index.to_bytes(4, "big")])
            assert len(value) == JUNK_CHARACTERS
            assert value == junk_value(index, names.count(name))
    assert len(list(store.scan())) == 2 * len(set(names))
