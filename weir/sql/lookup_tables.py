"""Tables outside that rows look up, as a query sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weir.dataflow.lookup_tables import CassandraTable, FileTable
from weir.sql.relations import Column, Scope, polars_types
from weir.sql.types import column


@dataclass(frozen=True)
class LookupTable:
    """A table of CREATE TABLE.

    Attributes:
        name: as the text calls it.
        table: what ``lookup_join`` takes.
        settings: what else it is told.
    """

    name: str
    table: FileTable | CassandraTable
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def refusal(self) -> str:
        """What a query is told that reads it as a stream."""
        return (
            f"{self.name!r} is a table that rows look up; write JOIN {self.name} FOR SYSTEM_TIME AS OF PROCTIME() ON "
            "..., or CREATE SOURCE in place of CREATE TABLE"
        )

    def scope(self, alias: str) -> Scope:
        """Columns of the table, as expressions see them."""
        types = polars_types(self.table.to_spec().schema)
        return Scope([Column(name, column(name, dtype), alias) for name, dtype in types.items()], [alias])
