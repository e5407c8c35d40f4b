"""``mapInArrow`` without pandas, which pyspark asks for there and does not use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from weir.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: What runs in a task: batches of its partition, and those that leave.
MapsBatches = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(frame: DataFrame, function: MapsBatches, schema: str) -> DataFrame:
    """Return the rows that a function makes of the batches of each partition, as ``DataFrame.mapInArrow`` does.

    Raises:
        ConfigError: there is no pandas, and this pyspark cannot do without.
    """
    if find_spec("pandas") is not None:
        mapped: DataFrame = frame.mapInArrow(function, schema)
        return mapped
    import pyspark
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    try:
        made: Any = UserDefinedFunction(
            function, returnType=schema, name="weir", evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF
        )
        called = made(*[frame[f"`{name}`"] for name in frame.columns])
        # The same call that pyspark's own method makes.
        inner: Any = frame._jdf  # noqa: SLF001
        return type(frame)(inner.mapInArrow(called._jc, False, None), frame.sparkSession)  # noqa: SLF001
    except (AttributeError, TypeError) as error:
        # These names are pyspark's own business: it may have other ones some day, and with pandas none is needed.
        raise ConfigError(
            f"pyspark {pyspark.__version__} needs pandas for this job: pip install pandas"
        ) from error
