"""Frozen descriptions of operators. The control plane sees these; only task managers load the logic.

A spec executes nothing and holds no resource, and says all that there is to know about its operator: the columns that
leave it, whether it is a source, keyed or a sink (its base class), and the class that runs it. A new operator is a spec
here, its runtime class in ``weir.operators``, and the method of ``weir.Stream`` that makes the spec.
:meth:`OperatorSpec.describe` returns the canonical form that the job fingerprint and ``/plan`` are made of, so it must
not depend on the process (no ``id()``, no ``hash()``).
"""

from __future__ import annotations

from weir.specs.aggregate_functions import AggregateFunction
from weir.specs.base import OperatorSpec, SideOutput
from weir.specs.changes import TOP_ROWS_MAX, ChangelogTopSpec, DeduplicateSpec, TopSpec
from weir.specs.event_times import AssignEventTimeSpec
from weir.specs.joins import AsOfJoinSpec, ChangeJoinSpec, JoinBounds, JoinSpec, JoinType
from weir.specs.keyed import (
    Aggregate,
    EmitMode,
    KeyedAggregateSpec,
    KeyedProcessSpec,
    KeyedSpec,
)
from weir.specs.sinks import (
    BlackholeSpec,
    CollectSpec,
    CsvSinkSpec,
    DeadLettersSpec,
    DeltaSinkSpec,
    FileSinkSpec,
    JsonLinesSinkSpec,
    LatencySinkSpec,
    ParquetSinkSpec,
    PrintSpec,
    SinkSpec,
    UserSinkSpec,
)
from weir.specs.sources import (
    LINE_BYTES_MAX,
    ArrowIpcSpec,
    Compression,
    CsvSpec,
    FileOrder,
    JsonLinesSpec,
    OnBadRecord,
    ParquetSpec,
    SourceSpec,
    UserSourceSpec,
)
from weir.specs.stateless import (
    BusySpec,
    FilterSpec,
    FlatMapSpec,
    MapBatchesSpec,
    MapSpec,
    PassThroughSpec,
    SelectSpec,
    UnionSpec,
    UserOperatorSpec,
    WithColumnsSpec,
)
from weir.specs.window_kinds import Window
from weir.specs.windows import WindowAggregate, WindowAggregateSpec

__all__ = [
    "LINE_BYTES_MAX",
    "TOP_ROWS_MAX",
    "Aggregate",
    "AggregateFunction",
    "ArrowIpcSpec",
    "AsOfJoinSpec",
    "AssignEventTimeSpec",
    "BlackholeSpec",
    "BusySpec",
    "ChangeJoinSpec",
    "ChangelogTopSpec",
    "CollectSpec",
    "Compression",
    "CsvSinkSpec",
    "CsvSpec",
    "DeadLettersSpec",
    "DeduplicateSpec",
    "DeltaSinkSpec",
    "EmitMode",
    "FileOrder",
    "FileSinkSpec",
    "FilterSpec",
    "FlatMapSpec",
    "JoinBounds",
    "JoinSpec",
    "JoinType",
    "JsonLinesSinkSpec",
    "JsonLinesSpec",
    "KeyedAggregateSpec",
    "KeyedProcessSpec",
    "KeyedSpec",
    "LatencySinkSpec",
    "MapBatchesSpec",
    "MapSpec",
    "OnBadRecord",
    "OperatorSpec",
    "ParquetSinkSpec",
    "ParquetSpec",
    "PassThroughSpec",
    "PrintSpec",
    "SelectSpec",
    "SideOutput",
    "SinkSpec",
    "SourceSpec",
    "TopSpec",
    "UnionSpec",
    "UserOperatorSpec",
    "UserSinkSpec",
    "UserSourceSpec",
    "Window",
    "WindowAggregate",
    "WindowAggregateSpec",
    "WithColumnsSpec",
]
