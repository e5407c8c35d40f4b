"""Rows of a table outside are those that were asked for last, however they are found, whatever is forgotten."""

import numpy as np
import pyarrow as pa
import pytest

from weir.operators.joins.remembered_rows import FoundRows, KeyRows, RememberedRows

SCHEMA = pa.schema({"key": pa.int64(), "version": pa.int64()})
TTL_S = 5.0


def rows_of(found: FoundRows, at: int) -> list[tuple[int, int]]:
    first = int(found.firsts[at])
    part = found.rows.slice(first, int(found.counts[at]))
    return list(zip(part["key"].to_pylist(), part["version"].to_pylist(), strict=True))


@pytest.mark.parametrize("seed", range(30))
def test_whole_numbers_have_the_rows_that_were_asked_for_within_the_time(seed):
    random = np.random.default_rng(seed)
    # Near ones, and some that lie too far apart for places in an array.
    far = [2**62, -(2**63)] if seed % 3 == 0 else []
    numbers = [*range(-3, 12), *([2_000_000] if seed % 5 == 0 else []), *far]
    remembered = RememberedRows(SCHEMA, int(random.choice([0, 8, 1000])), TTL_S)
    #: By key: since when, and the rows.
    asked: dict[int, tuple[float, list[tuple[int, int]]]] = {}
    now_s, version, placed = 0.0, 0, 0

    def ask(keys: np.ndarray, distinct: np.ndarray) -> KeyRows:
        nonlocal version
        counts, rows = [], []
        for key in distinct[keys].tolist():
            version += 1
            asked[key] = now_s, [(key, version)] * (key % 3)
            counts.append(key % 3)
            rows += asked[key][1]
        columns = {"key": [row[0] for row in rows], "version": [row[1] for row in rows]}
        return KeyRows(pa.table(columns, schema=SCHEMA), np.array(counts, dtype=np.int64))

    for _ in range(60):
        now_s += float(random.choice([0.1, 1.0, 3.0]))
        batch = random.choice(np.array(numbers), int(random.integers(1, 6)))
        found = remembered.of_numbers(batch, now_s)
        if found is None:
            distinct, inverse = np.unique(batch, return_inverse=True)
            keys = [int(key).to_bytes(8, "little", signed=True) for key in distinct.tolist()]
            by_key = remembered.found(keys, now_s, lambda at, of=distinct: ask(at, of), distinct)
            found = FoundRows(by_key.rows, by_key.firsts[inverse], by_key.counts[inverse])
        else:
            placed += 1
        for at, key in enumerate(batch.tolist()):
            since_s, wanted = asked[key]
            assert now_s - since_s < TTL_S
            assert rows_of(found, at) == wanted
    if not far and seed % 5:
        assert placed or remembered._size_max < 1000
