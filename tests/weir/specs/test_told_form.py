"""The forms that fingerprints are made of: golden ones of every kind of step, and what makes another form.

``tests/golden/fingerprints`` is never changed: a new kind or a new field gets a new entry (a field that comes later has
``came_later``). Whoever must change a form gives ``weir.plan.fingerprints`` another version, and compares records of
this one with this form.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import functools
import json
import pathlib
import re
import sys
import types
import uuid
import zoneinfo

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.weir.specs.spec_samples import DATACLASSES, filled, kinds, samples, told_fields
from weir.specs.told_form import told_form
from weir.specs.window_kinds import Window

GOLDEN = json.loads(
    (pathlib.Path(__file__).parents[2] / "golden" / "fingerprints" / "steps.json").read_text()
)
KINDS = kinds()


@pytest.mark.parametrize("kind", KINDS)
def test_golden_form_of_each_kind(kind):
    form = told_form(filled(KINDS[kind]))
    assert json.loads(json.dumps(form)) == GOLDEN[kind]
    known = {field.name for field in dataclasses.fields(KINDS[kind]) if not field.metadata.get("derived")}
    assert form.keys() == {"kind"} | known


def test_kinds_that_are_gone_are_known():
    assert KINDS.keys() == GOLDEN.keys()


@pytest.mark.parametrize("cls", [*KINDS.values(), *DATACLASSES.values()], ids=lambda cls: cls.__name__)
def test_each_field_makes_another_form(cls):
    one = filled(cls)
    for field in told_fields(cls):
        other = dataclasses.replace(one, **{field.name: samples(field)[1]})
        assert told_form(other) != told_form(one), field.name


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Text(enum.StrEnum):
    RED = "red"


class Scale:
    def __init__(self, by):
        self.by = by

    def __call__(self, row):
        return {"x": row["x"] * self.by}


@dataclasses.dataclass
class Setting:
    by: int = 1


BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
APART = [
    (pa.timestamp("ms"), pa.timestamp("us")),
    (pa.timestamp("ms"), pa.timestamp("ms", tz="UTC")),
    (pa.decimal128(10, 2), pa.decimal128(10, 3)),
    (pl.Datetime("ms"), pl.Datetime("us")),
    (pl.Int64, pl.Int32),
    (pl.List(pl.Int64), pl.List(pl.Int8)),
    (pa.schema([pa.field("a", pa.int8())]), pa.schema([pa.field("a", pa.int8(), nullable=False)])),
    (pl.col("a") > 1, pl.col("a") > 2),
    (pl.col("a").is_in([*range(50), 50]), pl.col("a").is_in([*range(50), 51])),
    (1, 1.5),
    (1, "1"),
    (True, 1),
    (None, "None"),
    (np.int64(1), np.int64(2)),
    (decimal.Decimal("1.0"), decimal.Decimal("1.00")),
    (b"a", "a"),
    (b"a", b"b"),
    ({"a": 1}, {"a": 2}),
    ({"a"}, {"a", "b"}),
    ({"a"}, ["a"]),
    (dt.date(2020, 1, 1), dt.date(2020, 1, 2)),
    (dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, tzinfo=BERLIN)),
    (dt.time(1), dt.time(2)),
    (dt.timedelta(seconds=1), dt.timedelta(seconds=2)),
    (pathlib.Path("a"), pathlib.Path("b")),
    (uuid.UUID(int=1), uuid.UUID(int=2)),
    (BERLIN, zoneinfo.ZoneInfo("UTC")),
    (re.compile("a"), re.compile("a", re.DOTALL)),
    (Colour.RED, Colour.BLUE),
    (Text.RED, "red"),
    (len, sum),
    (str.upper, str.lower),
    (Scale, Setting),
    (Setting(1), Setting(2)),
    (Setting(1), Window("session", 1, 1)),
    (functools.partial(Scale, 1), functools.partial(Scale, 2)),
    (functools.partial(Scale, by=pa.timestamp("s")), functools.partial(Scale, by=pa.timestamp("ms"))),
    (functools.partial(Scale, by=1), functools.partial(Scale, to=1)),
]


@pytest.mark.parametrize(("one", "other"), APART, ids=lambda value: type(value).__name__)
def test_what_is_not_the_same_has_another_form(one, other):
    forms = [json.dumps(told_form(value), sort_keys=True) for value in (one, other)]
    assert forms[0] != forms[1]
    assert [json.dumps(told_form(value), sort_keys=True) for value in (one, other)] == forms


def test_the_order_of_dicts_and_sets_does_not_count():
    assert told_form({"a": 1, "b": 2}) == told_form({"b": 2, "a": 1})
    names = [f"name {number}" for number in range(50)]
    assert told_form(set(names)) == told_form(set(reversed(names)))


def in_module(tmp_path, name, source):
    """A module that lies elsewhere."""
    path = tmp_path / f"{name}.py"
    path.write_text(source)
    made = types.ModuleType(name)
    made.__file__ = str(path)
    exec(compile(source, str(path), "exec"), made.__dict__)
    return made


SOURCE = """
class Total:
    def double(self, row):
        return row

def double(row):
    return {"x": row["x"] * 2}
"""


@pytest.mark.parametrize("name", ["double", "Total"])
def test_code_of_a_user_may_move_to_another_module_but_not_change(tmp_path, monkeypatch, name):
    for module_name, source in (
        ("fp_one", SOURCE),
        ("fp_two", "# moved\n" + SOURCE),
        ("fp_three", SOURCE.replace("* 2", "* 3").replace("return row", "return None")),
    ):
        # Where ``inspect`` looks for classes.
        monkeypatch.setitem(sys.modules, module_name, in_module(tmp_path, module_name, source))
    one, two, three = (
        told_form(getattr(sys.modules[name_], name)) for name_ in ("fp_one", "fp_two", "fp_three")
    )
    assert one == two != three
    assert one.startswith(f"{name}@")


def test_code_of_weir_may_move_and_be_written_anew():
    assert told_form(weir.tumbling("1s").__class__) == "weir:Window"
    fields = [(field.name, field.type, field) for field in dataclasses.fields(Window)]
    moved = dataclasses.make_dataclass("Window", fields, namespace={"__module__": "weir.errors"})
    assert told_form(moved("session", 1, 2)) == told_form(Window("session", 1, 2))


def test_a_type_without_a_form_is_refused():
    union = pa.dense_union([pa.field("a", pa.int8())])
    with pytest.raises(
        weir.GraphError, match=r"column 'a': dense_union<a: int8=0> is a type that has no form"
    ):
        told_form(pa.schema([("a", union)]))


def test_secrets_are_in_no_form():
    assert "hush" not in json.dumps(told_form(filled(KINDS["kafka_source"])))
