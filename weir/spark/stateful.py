"""A step of Weir with state in a stream of Spark: ``transformWithState``, whose keys are the step's key groups.

Spark keeps the state in RocksDB, with the checkpoints of the query. Its watermark and its timers are not used: see
``weir.spark.marks``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from weir.errors import ConfigError
from weir.spark.arrow_maps import map_in_arrow
from weir.spark.declared import DeclaredStep
from weir.spark.group_store import SparkMap, SparkStore
from weir.spark.marks import with_mark_columns
from weir.spark.packed import (
    COMING,
    GROUP,
    LEAVING,
    MARK_MS,
    ROWS,
    Packing,
    Unpacking,
    groups_of,
    to_bytes,
)
from weir.spark.task_graph import TaskGraph
from weir.spark.task_steps import TaskSteps, Upstream
from weir.spark.tasks import Told
from weir.spark.triggers import GroupTrigger, Position
from weir.spark.types import ddl
from weir.specs.broadcast import BroadcastProcessSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: What sessions need whose streams have such steps.
STATE_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # What has changed is written for each trigger, and all of it now and then.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # RocksDB's files take no other one; sessions of Weir have one without checksums, which Hadoop would hand out again.
    "fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}


def with_state(
    frames: Sequence[DataFrame],
    steps: TaskSteps,
    upstream: Sequence[Sequence[Upstream]],
    max_parallelism: int,
    tell: Told,
) -> DataFrame:
    """Return what a step makes of streams with marks, itself with marks.

    Args:
        frames: of each input.
        steps: the step.
        upstream: of each input, whose marks come.
        max_parallelism: of the job.
        tell: of rows that were put aside; it is sent to tasks.
    """
    node = steps.node
    is_broadcast = isinstance(node.spec, BroadcastProcessSpec)
    keys = [tuple(node.spec.keys_of_input(number)) for number in range(len(frames))]
    groups = groups_of(max_parallelism) if any(keys) else 1
    coming: DataFrame | None = None
    for number, frame in enumerate(frames):
        to_all = is_broadcast and number == 1
        packing = Packing(number, keys[number], steps.inputs[number], groups, to_all)
        packed = map_in_arrow(frame, packing, COMING)
        coming = packed if coming is None else coming.unionAll(packed)
    assert coming is not None, "it has an input"
    from pyspark.serializers import CloudPickleSerializer

    step = StatefulStep(TaskGraph(steps), upstream, tell)
    serializer: Any = CloudPickleSerializer  # without annotations in pyspark
    made = _transformed(coming, DeclaredStep(step.state_names, serializer().dumps(step)))
    return map_in_arrow(made, Unpacking(node.name, steps.wire), ddl(with_mark_columns(steps.wire)))


class StatefulStep:
    """What a step does in tasks, which a :class:`weir.spark.declared.DeclaredStep` calls for Spark.

    Args:
        graph: the step.
        upstream: of each input, whose marks come.
        tell: of rows that were put aside.
    """

    def __init__(self, graph: TaskGraph, upstream: Sequence[Sequence[Upstream]], tell: Told) -> None:
        self._graph, self._upstream, self._tell = graph, upstream, tell
        self._position: Any = None
        self._states: dict[int, SparkMap] = {}

    @property
    def state_names(self) -> dict[int, str]:
        """What each of the step's states is called in Spark, by its number."""
        own = self._graph.steps.node.name
        return {
            number: f"state_{name.removeprefix(own).encode().hex()}"
            for name, number in self._graph.state_ids.items()
        }

    def open(self, position: Any, states: dict[int, SparkMap]) -> None:
        """Take the states that Spark keeps; called before the first rows."""
        self._position, self._states = position, states

    def handleInputRows(self, key: Any, rows: Iterable[Any], timerValues: Any) -> Iterator[Any]:
        """Yield what a key group makes of a trigger, and its watermark."""
        from pyspark.sql import Row

        known, leaving = self._position.get(), Row(MARK_MS, ROWS)
        position = Position() if known is None else Position.of_json(known[0])
        store = SparkStore(self._states)
        trigger = GroupTrigger(self._graph, self._upstream, store, position, self._tell)
        made = trigger.run(int(key[0]), rows)
        store.commit()
        self._position.update((position.to_json(),))
        if made:
            for batch in pa.Table.from_batches(made).combine_chunks().to_batches():
                yield leaving(None, to_bytes(batch))
        yield leaving(trigger.watermark_ms, None)


def _transformed(frame: DataFrame, step: DeclaredStep) -> DataFrame:
    """Return what ``GroupedData.transformWithState`` returns.

    Raises:
        ConfigError: there is no pandas, and this pyspark cannot do without.
    """
    grouped: Any = frame.groupBy(GROUP)
    if find_spec("pandas") is not None:
        made: DataFrame = grouped.transformWithState(step, LEAVING, "Append", "None")
        return made
    import pyspark

    try:
        from pyspark.sql.streaming.stateful_processor_util import TransformWithStateInPandasUdfUtils
        from pyspark.sql.types import BinaryType, LongType, StructType
        from pyspark.sql.udf import UserDefinedFunction
        from pyspark.util import PythonEvalType

        schema = StructType().add(MARK_MS, LongType()).add(ROWS, BinaryType())
        utils: Any = TransformWithStateInPandasUdfUtils
        function: Any = UserDefinedFunction(
            utils(step, "None").transformWithStateUDF,
            returnType=schema,
            name="weir",
            evalType=PythonEvalType.SQL_TRANSFORM_WITH_STATE_PYTHON_ROW_UDF,
        )
        called = function(*[frame[name] for name in frame.columns])
        # The same calls that pyspark's own method makes.
        session: Any = frame.sparkSession
        inner = grouped._jgd.transformWithStateInPySpark(  # noqa: SLF001
            called._jc,  # noqa: SLF001
            session._jsparkSession.parseDataType(schema.json()),  # noqa: SLF001
            "Append",
            "None",
            None,
            "",
        )
        return type(frame)(inner, session)
    except (AttributeError, TypeError, ImportError) as error:
        # These names are pyspark's own business: it may have other ones some day, and with pandas none is needed.
        raise ConfigError(
            f"pyspark {pyspark.__version__} needs pandas for this job: pip install pandas"
        ) from error
