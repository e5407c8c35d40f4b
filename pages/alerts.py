"""Alert rules for Prometheus: what an operator wants to be told of. ``python -m pages alerts`` prints them."""

from __future__ import annotations

from dataclasses import dataclass

from weir.metrics import definitions as d


@dataclass(frozen=True)
class AlertRule:
    """A rule of a Prometheus rule file."""

    name: str
    #: PromQL; all metrics of it are in ``weir.metrics.definitions``.
    expression: str
    #: For how long it holds before somebody is told, as Prometheus writes it.
    lasts: str
    #: "page" or "ticket".
    severity: str
    #: What is wrong, and what to do; with labels as ``{{ $labels.job }}``.
    summary: str
    mend: str


RULES = (
    AlertRule(
        "WeirJobFailed",
        f'{d.JOB_STATE.name}{{state="FAILED"}} == 1',
        "0m",
        "page",
        "Job {{ $labels.job }} has failed.",
        "/status says why; start it again from its latest checkpoint.",
    ),
    AlertRule(
        "WeirJobRestarts",
        f"increase({d.JOB_RESTARTS.name}[15m]) > 3",
        "0m",
        "page",
        "Job {{ $labels.job }} restarts again and again.",
        "restart_cause of /status names the subtask and why; docs/operations.md has what a failure means.",
    ),
    AlertRule(
        "WeirCheckpointOverdue",
        f"{d.JOB_CHECKPOINT_AGE.name} > 300",
        "1m",
        "page",
        "Job {{ $labels.job }} has made no checkpoint for five minutes.",
        "checkpoint_waits_for of /status says what it waits for, /checkpoints why they failed.",
    ),
    AlertRule(
        "WeirSubtaskStandsStill",
        f"increase({d.RECORDS_IN.name}[5m]) == 0 and {d.QUEUE_DEPTH.name} > 0",
        "5m",
        "page",
        "Subtask {{ $labels.subtask }} of {{ $labels.operator }} takes no rows although rows wait.",
        "Look for a function of the job that hangs: the page of the control plane names the step.",
    ),
    AlertRule(
        "WeirSourceFallsBehind",
        f"{d.SOURCE_LAG.name} > 100000 and deriv({d.SOURCE_LAG.name}[10m]) > 0",
        "10m",
        "ticket",
        "Partition {{ $labels.partition }} of {{ $labels.operator }} has more and more records that wait.",
        "The headline of /status names the stage that limits; scale it, or wait for the backlog to be read.",
    ),
    AlertRule(
        "WeirEventTimeStandsStill",
        f"{d.WATERMARK_LAG.name} > 600",
        "10m",
        "ticket",
        "Event time of {{ $labels.operator }} is more than ten minutes behind the clock.",
        "A source is late or idle: docs/event-time.md; the page says which one holds the others back.",
    ),
    AlertRule(
        "WeirRowsRejected",
        f"increase({d.JOB_REJECTED.name}[15m]) > 0",
        "0m",
        "ticket",
        "{{ $labels.operator }} has rejected records or put rows aside.",
        "The dead-letter files have them, with the reason; /status says where.",
    ),
    AlertRule(
        "WeirStoreStalls",
        f"rate({d.STORE_STALL_TIME.name}[5m]) > 0.05",
        "5m",
        "ticket",
        "Writes to the state of {{ $labels.task_manager }} wait for flushes or merges.",
        "The log of the task manager says which of the two, and the setting.",
    ),
    AlertRule(
        "WeirStoreErrors",
        f"{d.STORE_ERRORS.name} > 0",
        "0m",
        "page",
        "RocksDB of {{ $labels.task_manager }} could not flush or merge.",
        "The disk is full or broken; the log of the task manager has the error.",
    ),
    AlertRule(
        "WeirDiskAlmostFull",
        f"{d.DISK_FREE.name} / {d.DISK_SIZE.name} < 0.1",
        "5m",
        "page",
        "The disk with the state of {{ $labels.task_manager }} has less than a tenth left.",
        "Free some, or drain the task manager to one with a larger disk.",
    ),
    AlertRule(
        "WeirDatabaseAway",
        f"{d.STORE_AWAY.name} > 30",
        "0m",
        "page",
        "The database with the state of {{ $labels.task_manager }} does not answer.",
        "Rows wait until it does; look at the database.",
    ),
    AlertRule(
        "WeirStandbyBehind",
        f"{d.STANDBY_LAG.name} > 60",
        "10m",
        "ticket",
        "What {{ $labels.task_manager }} keeps of {{ $labels.of }} is more than 60 checkpoints old.",
        "standbys in /status says why; at a takeover the rest would be fetched.",
    ),
    AlertRule(
        "WeirNoFreeSlot",
        f"{d.SLOTS.name} - {d.SLOTS_USED.name} == 0 and on() {d.JOB_STATE.name}"
        '{state="WAITING_FOR_TASK_MANAGERS"} == 1',
        "2m",
        "page",
        "The job waits for task managers.",
        "Start another one, or raise taskManager.operator_quota.",
    ),
)


def rule_file() -> str:
    """Return the rules as a rule file of Prometheus."""
    lines = [
        "# Written by `python -m pages alerts`; do not edit.",
        "groups:",
        "  - name: weir",
        "    rules:",
    ]
    for rule in RULES:
        lines += [
            f"      - alert: {rule.name}",
            f"        expr: {_quoted(rule.expression)}",
            f"        for: {rule.lasts}",
            f"        labels: {{severity: {rule.severity}}}",
            "        annotations:",
            f"          summary: {_quoted(rule.summary)}",
            f"          description: {_quoted(rule.mend)}",
        ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Return a scalar of YAML with single quotes, in which nothing but these is special."""
    return "'" + text.replace("'", "''") + "'"
