"""Records of the replicated log in and out of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weir.author.operator import Operator, SourceReader
    from weir.specs.log import LogSinkSpec, LogSpec


def create_log_reader(spec: LogSpec) -> SourceReader:
    """The reader of a source; for ``weir.operators.registry``."""
    from weir.operators.log.reader import LogReader

    return LogReader(spec)


def create_log_sink(spec: LogSinkSpec) -> Operator:
    """The sink that the spec describes; for ``weir.operators.registry``."""
    if spec.delivery == "exactly_once":
        from weir.operators.log.sink import LogSink

        return LogSink(spec)
    from weir.operators.log.append_sink import LogAppendSink

    return LogAppendSink(spec)
