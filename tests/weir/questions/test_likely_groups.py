"""Where a key is told to be without kernels is where it is."""

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import weir
from weir.keys.hashing import hash_keys, key_bytes, key_groups
from weir.questions.likely_groups import key_kinds, likely_group

GROUPS = 128


def build():
    flow = weir.Dataflow("asked", max_parallelism=GROUPS)
    schema = {"text": str, "number": pl.Int32, "ratio": float, "day": pl.Date}
    rows = flow.source("rows", weir.JsonLines("none", schema=schema))
    for columns in (["text"], ["number"], ["day"], ["text", "number"]):
        name = "_".join(columns)
        rows.key_by(*columns).count(name, "rows").sink(f"{name}_out", weir.Blackhole())
    return flow.build()


def test_keys_of_one_text_or_number_are_known():
    assert key_kinds(build()) == {"text": "text", "number": "integer"}


@pytest.mark.parametrize(
    ("kind", "array"),
    [
        ("text", pa.array(["", "a", "belgium", "ä" * 40, *(f"server-{index}" for index in range(300))])),
        ("integer", pa.array([0, 1, -1, 2**31, -(2**63), 2**63 - 1, *range(-150, 150)])),
    ],
)
def test_a_key_is_where_its_owner_has_it(kind, array):
    keys = key_bytes(pa.RecordBatch.from_arrays([array], names=["key"]), ["key"])
    groups = key_groups(hash_keys(keys), GROUPS)
    told = [likely_group(kind, str(value), GROUPS) for value in array.to_pylist()]
    np.testing.assert_array_equal(told, groups)


def test_what_is_no_such_key_is_nowhere():
    assert likely_group(None, "a", GROUPS) is None
    assert likely_group("integer", "a", GROUPS) is None
    # A refusal is the owner's to give.
    assert likely_group("text", "\ud800", GROUPS) is not None
    assert likely_group("integer", str(2**70), GROUPS) is not None
