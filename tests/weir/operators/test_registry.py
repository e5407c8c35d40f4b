import importlib
import importlib.util
import pkgutil
from dataclasses import dataclass
from typing import ClassVar

import polars as pl
import pyarrow as pa
import pytest

from weir import specs
from weir.errors import GraphError
from weir.operators.registry import create_operator, create_reader
from weir.operators.sources.json.json_lines import JsonLinesReader
from weir.operators.stateless.expressions import FilterOperator

# Some are imported by those who use them only: which tests there are must not depend on what was imported before.
for _module in pkgutil.iter_modules(specs.__path__, "weir.specs."):
    importlib.import_module(_module.name)


@dataclass(frozen=True)
class StrangeSpec(specs.OperatorSpec):
    kind: ClassVar[str] = "strange"


@dataclass(frozen=True)
class StrangeSource(specs.SourceSpec):
    kind: ClassVar[str] = "strange_source"


@dataclass(frozen=True)
class OwnSource(specs.JsonLinesSpec):
    kind: ClassVar[str] = "own_source"
    runtime: ClassVar[str] = "weir.operators.sources.json.json_lines:JsonLinesReader"


def concrete_specs(base):
    for spec in base.__subclasses__():
        yield from concrete_specs(spec)
        if spec.kind != "abstract" and spec.__module__.startswith("weir.specs."):
            yield spec


def test_every_spec_has_a_runtime():
    # weir.Collect() is made by weir.local; task managers refuse it when they load the job.
    assert [spec for spec in concrete_specs(specs.OperatorSpec) if not spec.runtime] == [specs.CollectSpec]


@pytest.mark.parametrize(
    "location", sorted({spec.runtime for spec in concrete_specs(specs.OperatorSpec) if spec.runtime})
)
def test_every_runtime_exists(location):
    module, _, name = location.partition(":")
    if importlib.util.find_spec(module) is None:
        pytest.fail(f"{module} is missing")
    assert callable(getattr(importlib.import_module(module), name))


def test_create_operator():
    assert isinstance(create_operator(specs.FilterSpec(pl.col("x") > 1)), FilterOperator)


def test_unknown_spec():
    with pytest.raises(GraphError, match="StrangeSpec names no class in `runtime`"):
        create_operator(StrangeSpec())
    with pytest.raises(GraphError, match="StrangeSource names no class in `runtime`"):
        create_reader(StrangeSource(pa.schema([])))


def test_a_source_may_bring_its_own_reader():
    assert isinstance(create_reader(OwnSource(pa.schema([]))), JsonLinesReader)
