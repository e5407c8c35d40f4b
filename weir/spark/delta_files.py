"""Tables of Delta Lake, written without a package of Spark: tasks write files, and the driver adds them in one commit.

The commit names an application transaction, as that of :mod:`weir.operators.sinks.delta_table`: of a stream the query,
which Spark keeps in its checkpoints, and the number of the trigger. A trigger that is run again finds it, and adds
nothing, but its rows are made. Files of tasks that fail are in no commit: nobody reads them, and Delta's VACUUM removes
them.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa

from weir.clock import SystemClock
from weir.operators.sinks.delta_table import DeltaTable
from weir.operators.sinks.part_files import pending
from weir.operators.sinks.part_formats import part_format
from weir.operators.sinks.places import open_place
from weir.operators.sinks.rolled_writing import FileNames, write_files
from weir.plan.graph import Node
from weir.spark.arrow_maps import map_in_arrow
from weir.spark.marks import partition_number
from weir.spark.types import cast_batch, quoted
from weir.specs import DeltaSinkSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ADDED = pa.schema([("added", pa.string())])


@dataclass(frozen=True)
class DeltaWrites:
    """Writes what comes to a sink, trigger by trigger, or a batch once.

    Attributes:
        spec: the sink.
        schema: user columns.
        app_id: application of its transactions, without the query.
    """

    spec: DeltaSinkSpec
    schema: pa.Schema
    app_id: str

    @classmethod
    def of(cls, node: Node, spec: DeltaSinkSpec, job: str) -> DeltaWrites:
        """Return those of a sink of a job."""
        if "://" not in spec.path:
            # Tasks have another working directory than the driver.
            spec = replace(spec, path=str(Path(spec.path).expanduser().absolute()))
        return cls(spec, node.schema, f"weir/{job}/{node.name}")

    def create(self) -> DeltaTable:
        """Create the table if it is not there.

        Raises:
            InputError: it has other columns or partitions, or cannot be written.
        """
        table = DeltaTable(self.spec, open_place(self.spec.path).location, SystemClock())
        table.create(self.schema)
        return table

    def batch(self, frame: DataFrame) -> None:
        """Add all rows; a batch that is run again adds to what is there, as elsewhere."""
        self._write(frame, secrets.token_hex(4), 0)

    def trigger(self, frame: DataFrame, number: int) -> None:
        """Add the rows of a trigger, once; Spark calls it with the number of the trigger."""
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query, "it is called by a query"
        self._write(frame, query, number)

    def _write(self, frame: DataFrame, query: str, number: int) -> None:
        table, app_id = self.create(), f"{self.app_id}/{query}"
        if any(version >= number for version in table.versions([app_id])):
            # The state of the steps before is made by reading their rows: Spark does not end the trigger without it.
            frame.write.format("noop").mode("overwrite").save()
            return
        rows = frame.selectExpr(*(quoted(name) for name in self.schema.names))
        made = map_in_arrow(rows, DeltaFiles(self.spec, self.schema), "added STRING").collect()
        if adds := [orjson.loads(row[0]) for row in made]:
            table.add(app_id, number, adds)


@dataclass(frozen=True)
class DeltaFiles:
    """What Spark calls in each task: rows become files, of which no commit says anything yet.

    Attributes:
        spec: the sink.
        schema: user columns.
    """

    spec: DeltaSinkSpec
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what the table's log has of each file."""
        place, (suffix, new_writer) = open_place(self.spec.path), part_format(self.spec)
        names = FileNames(
            # Other runs, and other attempts of this task, write to the same folder.
            f"{secrets.token_hex(4)}.{suffix}",
            partition_number(),
            0,
            partition_by=self.spec.partition_by,
            values_in_folders=False,
        )
        rows = (cast_batch(batch, self.schema) for batch in batches if batch.num_rows)
        written = write_files(place, rows, new_writer, names, lambda: False)
        for file in written:
            place.publish(pending(file.name), file.name)
        place.settle([file.name for file in written])
        added = [orjson.dumps([file.name, file.values, file.rows, file.bytes]).decode() for file in written]
        yield pa.RecordBatch.from_arrays([pa.array(added, pa.string())], schema=_ADDED)
