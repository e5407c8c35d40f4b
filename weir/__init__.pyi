"""Public names of Weir, once: ``weir/__init__.py`` reads them here and loads each on its first use."""

from . import log as log
from .author.aggregator import (
    Aggregator as Aggregator,
    WindowBounds as WindowBounds,
)
from .author.broadcast_context import BroadcastContext as BroadcastContext
from .author.broadcast_process import BroadcastProcess as BroadcastProcess
from .author.key_context import KeyContext as KeyContext
from .author.keyed_process import KeyedProcess as KeyedProcess
from .author.operator import (
    Operator as Operator,
    OperatorContext as OperatorContext,
    Poll as Poll,
    SourceReader as SourceReader,
)
from .author.sink import Sink as Sink
from .author.source import Source as Source
from .author.states import (
    AggregatingState as AggregatingState,
    ListState as ListState,
    MapState as MapState,
    ReducingState as ReducingState,
    ValueState as ValueState,
)
from .author.timed_states import (
    SessionState as SessionState,
    VersionedState as VersionedState,
    WindowState as WindowState,
)
from .author.watermarks import (
    WatermarkAlignment as WatermarkAlignment,
    WatermarkGenerator as WatermarkGenerator,
    WatermarkStrategy as WatermarkStrategy,
    bounded_out_of_orderness as bounded_out_of_orderness,
    custom_watermarks as custom_watermarks,
    watermark_alignment as watermark_alignment,
)
from .dataflow.aggregates import (
    approx_distinct as approx_distinct,
    count as count,
    count_distinct as count_distinct,
    first as first,
    largest as largest,
    last as last,
    max as max,
    mean as mean,
    min as min,
    percentile as percentile,
    quantile as quantile,
    stddev as stddev,
    sum as sum,
    variance as variance,
)
from .dataflow.builder import Dataflow as Dataflow
from .dataflow.connectors import (
    ArrowIpc as ArrowIpc,
    Blackhole as Blackhole,
    Collect as Collect,
    Csv as Csv,
    CsvSink as CsvSink,
    DeadLetters as DeadLetters,
    DeltaSink as DeltaSink,
    JsonLines as JsonLines,
    JsonLinesSink as JsonLinesSink,
    LatencySink as LatencySink,
    Parquet as Parquet,
    ParquetSink as ParquetSink,
    Print as Print,
    UserSink as UserSink,
    UserSource as UserSource,
)
from .dataflow.kafka_connectors import (
    Kafka as Kafka,
    KafkaSink as KafkaSink,
)
from .dataflow.kafka_values import (
    Avro as Avro,
    Protobuf as Protobuf,
)
from .dataflow.log_connectors import (
    LogSink as LogSink,
    LogSource as LogSource,
)
from .dataflow.lookup_tables import (
    CassandraTable as CassandraTable,
    FileTable as FileTable,
)
from .dataflow.streams import (
    KeyedStream as KeyedStream,
    Stream as Stream,
)
from .dataflow.triggers import every as every
from .dataflow.windowed_streams import WindowedStream as WindowedStream
from .dataflow.windows import (
    cumulative as cumulative,
    global_window as global_window,
    session as session,
    sliding as sliding,
    tumbling as tumbling,
)
from .errors import (
    GraphError as GraphError,
    WeirError as WeirError,
)
from .local.running import run as run
from .nexmark.specs import Nexmark as Nexmark
from .operators.sinks.two_phase import (
    TransactionId as TransactionId,
    TwoPhaseSink as TwoPhaseSink,
)
from .operators.windows.rows.window_trigger import WindowTrigger as WindowTrigger
from .questions.client import connect as connect
from .questions.report import report as report
from .rows.records import with_times as with_times
from .rows.schemas import Nullable as Nullable
from .rows.side_outputs import side as side
from .savepoints.saved_state import SavedState as SavedState, read_state as read_state
from .state.ttl import Ttl as Ttl

__all__: list[str]
__version__: str
