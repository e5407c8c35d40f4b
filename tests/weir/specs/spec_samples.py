"""A value for each field that a step may have, and another one."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil

import polars as pl
import pyarrow as pa

import weir.nexmark.specs
import weir.specs
from weir.author.states import DeclaredState
from weir.author.watermarks import WatermarkAlignment, WatermarkStrategy
from weir.protocol.checkpoints.horizons import Horizon
from weir.specs import OperatorSpec
from weir.specs.base import SideOutput
from weir.specs.conditions import AllOf, AnyOf, Comparison
from weir.specs.joins import JoinBounds
from weir.specs.kafka_properties import ClientProperties
from weir.specs.kafka_values import AvroSpec, Descriptors, ProtobufSpec, RegistrySpec
from weir.specs.keyed import Aggregate
from weir.specs.lookup_joins import CassandraTableSpec, FileTableSpec
from weir.specs.over import OverColumn
from weir.specs.row_order import OrderColumn
from weir.specs.window_kinds import Window
from weir.specs.window_updates import Trigger, WindowUpdates
from weir.specs.windows import WindowAggregate

for found in pkgutil.iter_modules(weir.specs.__path__):
    importlib.import_module(f"weir.specs.{found.name}")


def double(row):
    return {"x": row["id"] * 2}


class Doubled:
    """A user's class."""


SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", pa.timestamp("ms"))])
OTHER = pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", pa.timestamp("us"))])
EXPRESSIONS = (pl.col("id") > 3, pl.col("id") > 4)
CODE = (functools.partial(double, 1, scale=pa.decimal128(10, 2)), Doubled)
CHOICES = ("one", "other")

#: By the type that a field is declared with, without "| None".
SAMPLES = {
    "tuple[Horizon, ...]": ((Horizon("n", "event", 5),), ()),
    "str": ("a", "b"),
    "int": (7, 8),
    "float": (2.5, 3.5),
    "tuple[str, ...]": (("a", "b"), ("b", "a")),
    "Sequence[str]": (("a", "b"), ("b", "a")),
    "tuple[float, ...]": ((0.5, 0.01), (0.5, 0.02)),
    "tuple[tuple[str, str], ...]": ((("a", "b"),), (("b", "a"),)),
    "tuple[tuple[str, ...], ...]": ((("a",),), (("b",),)),
    "tuple[tuple[tuple[str, str], ...], ...]": (((("a", "b"),),), ((("b", "a"),),)),
    "tuple[tuple[str, Path], ...]": ((("a", ("x", 0)),), (("a", ("x", 1)),)),
    "tuple[tuple[str, RecordPart], ...]": ((("a", "key"),), (("a", "topic"),)),
    "tuple[tuple[str, LogPart], ...]": ((("a", "id"),), (("a", "topic"),)),
    "Literal['earliest', 'latest'] | int | tuple[tuple[int, int], ...]": (((0, 5),), "latest"),
    "Literal['earliest', 'latest'] | int | tuple[tuple[str, int, int], ...]": ((("t", 0, 5),), "latest"),
    "frozenset[str]": (frozenset("a"), frozenset("b")),
    "pa.Schema": (SCHEMA, OTHER),
    "pl.Expr": EXPRESSIONS,
    "tuple[pl.Expr, ...]": (EXPRESSIONS, EXPRESSIONS[:1]),
    "tuple[str | pl.Expr, ...]": (("a", EXPRESSIONS[0]), ("a", EXPRESSIONS[1])),
    "HoldUntil": (double, "first"),
    "LookupFunction": CODE,
    "Condition": (
        AllOf((Comparison("a", "Gt", 1), AnyOf((Comparison("b", "Eq", "x"),)))),
        AnyOf((Comparison("a", "Gt", 1), AnyOf((Comparison("b", "Eq", "x"),)))),
    ),
    "ClientProperties": (ClientProperties({"sasl.password": "hush"}), ClientProperties()),
    "Descriptors": (Descriptors(b"one"), Descriptors(b"other")),
}
#: Texts of which there are a few.
SAMPLES |= dict.fromkeys(
    (
        "AggregateFunction",
        "Compression",
        "Delivery",
        "EmitMode",
        "FileOrder",
        "JoinType",
        "LogCompression",
        "LookupType",
        "OverFrame",
        "OverFunction",
        "OnBadRecord",
        "OnTruncation",
        "ParquetCompression",
        "ProcessForm",
        "ResultMode",
        "StreamName",
        "TableFormat",
        "TextCompression",
        "ValueFormat",
        "WindowKind",
        "WindowTime",
    ),
    CHOICES,
)
#: What steps hold that has fields of its own.
DATACLASSES = {
    "WatermarkAlignment": WatermarkAlignment,
    "WatermarkStrategy": WatermarkStrategy,
    "Window": Window,
    "Trigger": Trigger,
    "WindowUpdates": WindowUpdates,
    "Aggregate": Aggregate,
    "WindowAggregate": WindowAggregate,
    "DeclaredState": DeclaredState,
    "SideOutput": SideOutput,
    "JoinBounds": JoinBounds,
    "OrderColumn": OrderColumn,
    "OverColumn": OverColumn,
    "RegistrySpec": RegistrySpec,
    "AvroSpec": AvroSpec,
    "ProtobufSpec": ProtobufSpec,
    "FileTableSpec": FileTableSpec,
    "CassandraTableSpec": CassandraTableSpec,
}


def samples(field):
    """Two values of a field; a field of a type that has none is to get some here."""
    declared = field.type.removesuffix(" | None")
    if declared == "bool":
        return (not field.default, field.default) if isinstance(field.default, bool) else (True, False)
    if declared.startswith("Callable["):
        return CODE
    if declared == "ValueSpec":
        return filled(AvroSpec), filled(ProtobufSpec)
    if declared == "TableSpec":
        return filled(FileTableSpec), filled(CassandraTableSpec)
    if declared in DATACLASSES:
        one = filled(DATACLASSES[declared])
        first = told_fields(DATACLASSES[declared])[0]
        return one, dataclasses.replace(one, **{first.name: samples(first)[1]})
    if (
        declared.startswith("tuple[")
        and declared.removeprefix("tuple[").removesuffix(", ...]") in DATACLASSES
    ):
        one = filled(DATACLASSES[declared.removeprefix("tuple[").removesuffix(", ...]")])
        return (one,), (one, one)
    return SAMPLES[declared]


def told_fields(cls):
    """Those that a fingerprint is to know of: what is derived the steps before say, and secrets nobody."""
    return [
        field
        for field in dataclasses.fields(cls)
        if not field.metadata.get("derived") and field.type != "ClientProperties"
    ]


def filled(cls):
    """One with a value in each field, none of which is a default."""
    return cls(**{field.name: samples(field)[0] for field in dataclasses.fields(cls)})


def kinds(base=OperatorSpec):
    """All kinds of steps that Weir has, by kind."""
    found = {}
    for cls in base.__subclasses__():
        if "kind" in vars(cls) and cls.__module__.startswith("weir."):
            found[cls.kind] = cls
        found |= kinds(cls)
    return dict(sorted(found.items()))
