"""Name, kind, labels and meaning of every metric that Weir itself defines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

SUBTASK_LABELS = ("job", "stage", "operator", "subtask")
STORE_LABELS = ("task_manager", "backend")
JOB_LABELS = ("job",)

#: All definitions, in the order of the documentation.
DEFINITIONS: list[Definition] = []


@dataclass(frozen=True)
class Definition:
    """A metric; ``name`` is what a scrape shows, with ``_total`` on counters."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    meaning: str

    def family(self) -> CounterMetricFamily | GaugeMetricFamily:
        """An empty family of a counter or gauge, to add samples to while a scrape runs."""
        kind = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        return kind(self.name, self.meaning, labels=self.labels)


def _define(
    name: str, kind: Literal["counter", "gauge", "histogram"], labels: Sequence[str], meaning: str
) -> Definition:
    definition = Definition(name, kind, tuple(labels), meaning)
    DEFINITIONS.append(definition)
    return definition


def _subtask(name: str, kind: Literal["counter", "gauge"], meaning: str) -> Definition:
    return _define(f"weir_subtask_{name}", kind, SUBTASK_LABELS, meaning)


def _store(name: str, kind: Literal["counter", "gauge"], meaning: str) -> Definition:
    return _define(f"weir_store_{name}", kind, STORE_LABELS, meaning)


RECORDS_IN = _subtask("records_in_total", "counter", "Records taken from the inputs (or read, in a source).")
RECORDS_OUT = _subtask("records_out_total", "counter", "Records sent to the outputs.")
BATCHES_IN = _subtask("batches_in_total", "counter", "Record batches taken from the inputs.")
BATCHES_OUT = _subtask("batches_out_total", "counter", "Record batches sent to the outputs.")
BYTES_IN = _subtask("bytes_in_total", "counter", "Arrow bytes of the batches taken.")
BYTES_OUT = _subtask("bytes_out_total", "counter", "Arrow bytes of the batches sent.")
RECORDS_REJECTED = _subtask("records_rejected_total", "counter", "Records that went to the dead letters.")
RECORDS_LATE = _subtask(
    "records_late_total",
    "counter",
    "Records that windows dropped because they came after the window had fired.",
)
BUSY = _subtask("busy_seconds_total", "counter", "Time spent in operators.")
IDLE = _subtask("idle_seconds_total", "counter", "Time spent waiting for input.")
BACKPRESSURED = _subtask(
    "backpressured_seconds_total", "counter", "Time spent waiting for a receiver's credit."
)
OUTPUT_QUEUED_ROWS = _subtask(
    "output_queued_rows", "gauge", "Rows put into output channels that their consumers have not finished."
)
OUTPUT_QUEUED_AGE = _subtask(
    "output_queued_age_seconds", "gauge", "How long the oldest of these rows has waited."
)
QUEUE_DEPTH = _subtask("queue_depth_batches", "gauge", "Record batches that wait in the input channels.")
WATERMARK_LAG = _subtask(
    "watermark_lag_seconds",
    "gauge",
    "Wall clock minus watermark; absent before the first one, 0 after the end.",
)
CHANNEL_WATERMARK_LAG = _define(
    "weir_channel_watermark_lag_seconds",
    "gauge",
    (*SUBTASK_LABELS, "input", "producer_stage", "producer_subtask"),
    "The same of each input channel of a subtask; absent before its first watermark and while it is idle.",
)

SOURCE_LAG = _define(
    "weir_source_lag_records",
    "gauge",
    (*SUBTASK_LABELS, "partition"),
    "Records of a partition of Kafka or of the log that wait to be read, as of up to some seconds ago.",
)
RESTORE_GROUPS = _subtask(
    "restore_groups", "gauge", "Key groups that have state in the checkpoint from which it was restored."
)
RESTORING_GROUPS = _subtask(
    "restoring_groups", "gauge", "Those of them whose state still comes from the checkpoint."
)
RESTORE_SECONDS = _subtask(
    "restore_seconds", "gauge", "How long its restore took, or has taken so far; 0: it was not restored."
)
STATE_HOLD_MAX = _subtask(
    "state_hold_seconds_max",
    "gauge",
    "The longest time for which rows waited while state was written or noted for a checkpoint.",
)

LATENCY = _define(
    "weir_latency_seconds",
    "histogram",
    SUBTASK_LABELS,
    "Time from the scheduled (paced) or read moment of an event to the end of the last step; of one batch a second.",
)

STORE_GETS = _store("gets_total", "counter", "Keys read from the store.")
STORE_PUTS = _store("puts_total", "counter", "Keys written to the store.")
STORE_DELETES = _store("deletes_total", "counter", "Keys deleted from the store.")
STORE_CACHE_HITS = _store("cache_hits_total", "counter", "Keys that the write-back cache held.")
STORE_CACHE_MISSES = _store("cache_misses_total", "counter", "Keys that had to be read from the store.")
STORE_MEMORY = _store(
    "memory_bytes",
    "gauge",
    "Memory of the store (block cache, memory tables, readers) and of the caches above it.",
)
STORE_DISK = _store("disk_bytes", "gauge", "Live files of the store on disk.")
STORE_TABLES = _store(
    "total_table_bytes", "gauge", "All table files, also those that only scans and images still need."
)
STORE_KEYS = _store("estimated_keys", "gauge", "Keys in the store, as RocksDB estimates them.")
STORE_MEMORY_TABLES = _store("memory_table_bytes", "gauge", "Memory tables that are not written out.")
STORE_LEVEL_0 = _store("level_0_files", "gauge", "Table files in level 0, which every read looks at.")
STORE_PENDING = _store(
    "pending_merge_bytes",
    "gauge",
    "What merges have to rewrite before the levels have their sizes, estimated.",
)
STORE_MERGES = _store("running_merges", "gauge", "Merges of table files under way.")
STORE_FLUSHES = _store("running_flushes", "gauge", "Memory tables that are being written out.")
STORE_ERRORS = _store("background_errors", "gauge", "Flushes and merges that have failed.")
STORE_STALLS = _store(
    "stalls_total", "counter", "Writes that had to wait because flushes or merges could not keep up."
)
STORE_STALL_TIME = _store("stall_seconds_total", "counter", "How long all of these waited.")
STORE_GET_TIME = _store("get_seconds_total", "counter", "Time of all reads by key.")
STORE_WRITE_TIME = _store("write_seconds_total", "counter", "Time of all writes, without what they waited.")
STORE_SCANS = _store("scans_total", "counter", "Reads of ranges.")
STORE_SCAN_TIME = _store("scan_seconds_total", "counter", "Time in which these read.")
STORE_MERGE_TIME = _store("merge_seconds_total", "counter", "Time of all merges of table files.")
STORE_MERGED = _store("merged_bytes_total", "counter", "Bytes that merges of table files have written.")
STORE_BLOCK_CACHE = _define(
    "weir_store_block_cache_total",
    "counter",
    (*STORE_LABELS, "kind", "result"),
    "Blocks (`data`, `index`, `filter`) that were looked for in the block cache (`hit`, `miss`); only with the "
    "setting `statistics` of the store.",
)
STORE_AWAY = _store(
    "away_seconds", "gauge", "For how long the database that keeps the state has not answered; 0: it answers."
)
STORE_WAITING = _store(
    "waiting_checkpoints", "gauge", "Complete checkpoints whose changes are not all in the database yet."
)
STORE_REQUESTS = _store(
    "requests_total", "counter", "Requests that the database that keeps the state has answered."
)
STORE_REQUESTS_TIME = _store(
    "request_seconds_total",
    "counter",
    "How long all of these took; divided by their number: how slow the database is.",
)

JOB_STATE = _define(
    "weir_job_state", "gauge", ("job", "state"), "1 for the state that the job is in, else 0."
)
JOB_GENERATION = _define("weir_job_generation", "gauge", JOB_LABELS, "Number of the deployment in force.")
JOB_SUBTASKS = _define("weir_job_subtasks", "gauge", ("job", "state"), "Subtasks of the job by their state.")
JOB_RESTARTS = _define(
    "weir_job_restarts_total", "counter", JOB_LABELS, "Restarts since this control plane took over."
)
JOB_RESTORES = _define(
    "weir_job_restores_total", "counter", ("job", "state"), "Restores of subtasks by how they ended."
)
JOB_RESTORING = _define(
    "weir_job_restoring_subtasks", "gauge", JOB_LABELS, "Subtasks whose restore has not ended."
)
JOB_REJECTED = _define(
    "weir_job_rejected_total",
    "counter",
    ("job", "operator"),
    "Records that a source rejected, and rows of a step that were put aside; those that a restart takes back do "
    "not count.",
)
JOB_CHECKPOINT_AGE = _define(
    "weir_job_checkpoint_age_seconds",
    "gauge",
    JOB_LABELS,
    "Since the latest complete checkpoint began (before the first one: since the start); absent where none is made.",
)
STANDBY_LAG = _define(
    "weir_standby_lag_checkpoints",
    "gauge",
    ("of", "task_manager"),
    "By how many numbers the checkpoint that `task_manager` keeps of `of` is behind the latest; absent: it has none.",
)
STANDBY_LAG_BYTES = _define(
    "weir_standby_lag_bytes",
    "gauge",
    ("task_manager",),
    "Bytes of the checkpoint that it fetches now for others which are not there yet.",
)
STANDBY_BYTES = _define("weir_standby_bytes", "gauge", ("task_manager",), "Bytes that it keeps of others.")
STANDBYS_MISSING = _define(
    "weir_standbys_missing",
    "gauge",
    JOB_LABELS,
    "Standbys for which there are not enough other task managers with free slots (`standby_replicas`).",
)
DISK_FREE = _define(
    "weir_disk_free_bytes",
    "gauge",
    ("task_manager",),
    "Free bytes of the disk that has the task manager's state.",
)
DISK_SIZE = _define("weir_disk_bytes", "gauge", ("task_manager",), "Size of that disk.")
AUTOSCALER_DECISIONS = _define(
    "weir_autoscaler_decisions_total",
    "counter",
    ("job", "direction"),
    "Decisions of the autoscaler to scale a stage, `up` or `down`; with a dry run those that it only told.",
)
AUTOSCALER_MISSING = _define(
    "weir_autoscaler_slots_missing",
    "gauge",
    JOB_LABELS,
    "Subtasks that the autoscaler would have added if task managers had free slots.",
)
TASK_MANAGERS = _define("weir_task_managers", "gauge", (), "Task managers whose lease is in force.")
SLOTS = _define("weir_slots", "gauge", (), "Subtasks that those task managers take together.")
SLOTS_USED = _define("weir_slots_used", "gauge", (), "Subtasks that are placed on them.")

QUESTIONS = _define(
    "weir_questions_total",
    "counter",
    ("step", "state", "consistency", "result"),
    "Questions to state that this process took, by result: `answered`, `nothing` (404), or why not: `malformed`, "
    "`job_over`, `continuation_expired`, `too_large`, `busy`, `caller_gone`, `try_again`, `failed`. 100 "
    "states that have answered have labels of their own, all else is `other`.",
)
QUESTION_SECONDS = _define(
    "weir_question_seconds",
    "histogram",
    ("step", "state", "consistency"),
    "Time from a question to its answer, of those that were answered.",
)

BUILD_INFO = _define("weir_build_info", "gauge", ("version", "python", "role"), "Always 1; says what runs.")
