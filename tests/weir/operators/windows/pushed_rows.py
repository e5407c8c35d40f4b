"""Jobs over rows that come to two subtasks, with a restart on the way."""

import weir
from weir import testing


def source(flow, schema):
    """Rows with a time in column ``at``."""
    events = weir.JsonLines("rows.jsonl", schema=schema, event_time="at")
    return flow.source("rows", events, parallelism=2, watermark=weir.bounded_out_of_orderness("5ms"))


def pushed(flow, rows):
    """The result of a job whose rows come in three parts, the first two to both subtasks, with a restart after them."""
    with testing.start(flow, watermarks="follow_rows") as job:
        third = len(rows) // 3
        for part in (rows[:third], rows[third : 2 * third]):
            job.push("rows", part[::2], subtask=0)
            job.push("rows", part[1::2], subtask=1)
        job.checkpoint()
        job.restart()
        job.push("rows", rows[2 * third :], subtask=0)
        return job.finish()
