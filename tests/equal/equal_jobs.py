"""All jobs of this folder, of which each says the same in ``weir.run``, in ``weir.testing`` and on real processes."""

import weir
from tests.equal import change_jobs, join_jobs, process_jobs, row_jobs, sql_jobs, window_jobs
from tests.equal.equal_rows import SOURCES
from tests.equal.job_form import Streams

JOBS = (
    window_jobs.JOBS | join_jobs.JOBS | process_jobs.JOBS | change_jobs.JOBS | row_jobs.JOBS | sql_jobs.JOBS
)


def collect(output, stream):
    """End an output in memory."""
    stream.sink(f"{output}_out", weir.Collect())


def read_at_once(source, lines):
    """The lines of a source, as they are."""
    return lines


def flow_of(
    directory, names, parallelism, end=collect, read=read_at_once, puts_aside=False, max_parallelism=16
):
    """A dataflow with these jobs, and how each of its outputs is compared.

    Args:
        directory: of the input.
        names: of the jobs.
        parallelism: of the steps by key.
        end: ``end(output, stream)`` ends an output.
        read: ``read(source, lines)`` is what is read instead of the lines of a source.
        puts_aside: rows at which a function raises are put aside; else it does not get them.
        max_parallelism: of the dataflow.
    """
    flow = weir.Dataflow("equal", max_parallelism=max_parallelism)

    def source(name):
        schema, bound = SOURCES[name]
        lines = weir.JsonLines(f"{directory}/{name}.jsonl", schema=schema, ordered=True)
        return flow.source(name, read(name, lines), event_time="at", watermark=bound)

    streams, compare = Streams(source, parallelism, puts_aside), {}
    for name in names:
        job = JOBS[name]
        last = job.last_step(streams, name)
        sides = {f"{name}_side_{side}": last.side_output(side) for side in job.sides}
        for output, stream in {name: last, **sides}.items():
            end(output, stream)
            compare[output] = job.compare
    return flow, compare
