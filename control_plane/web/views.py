"""What the HTTP interface shows, as models: they are the JSON, and the OpenAPI page is made from them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


class InputQueueView(BaseModel):
    """Rows that one subtask has put into its channel to another, which has not finished them."""

    stage: int = Field(description="of the sender")
    subtask_index: int = Field(description="of the sender")
    queued_rows: int
    queued_age_ms: float = Field(description="how long the oldest of them has waited")


class InputWatermarkView(BaseModel):
    """How far event time has come on one input channel of a subtask."""

    stage: int = Field(description="of the producer")
    subtask_index: int = Field(description="of the producer")
    input: int = Field(description="position among the inputs of the stage's first step")
    watermark_ms: int | None = Field(None, description="null before the first one")
    watermark_lag_ms: int | None = Field(None, description="how far it is behind the clock")
    is_idle: bool = Field(False, description="nothing comes; it does not hold the watermark back")


class SubtaskView(BaseModel):
    """One subtask as its task manager last reported it."""

    subtask_index: int
    task_manager: str = Field(description="host:port")
    state: str
    cause: str = ""
    records_in: int = 0
    records_out: int = 0
    records_rejected: int = Field(0, description="records that its source rejected, and rows put aside")
    lags: dict[str, int] = Field(
        {},
        description="records that wait to be read, by partition, of Kafka and of the log; a few seconds old",
    )
    queue_depth: int = Field(0, description="batches that wait in its input")
    queued_rows: int = Field(0, description="rows in its input channels, from the sender's buffer on")
    queued_age_ms: float = Field(0.0, description="how long the oldest of them has waited")
    input_queues: list[InputQueueView] = Field([], description="input channels on which rows wait")
    busy_ratio: float = Field(0.0, description="share of its time spent working, since the start")
    idle_ratio: float = 0.0
    backpressured_ratio: float = Field(0.0, description="share of its time spent waiting for credit")
    watermark_ms: int | None = Field(None, description="event time, ms since the epoch")
    watermark_lag_ms: int | None = Field(None, description="how far it is behind the clock")
    input_watermarks: list[InputWatermarkView] = Field([], description="of each input channel")
    is_idle: bool = Field(False, description="nothing comes; its watermark does not hold others back")
    is_held_back: bool = Field(
        False,
        description="a source that is too far ahead of others of its group to read (watermark_alignment)",
    )
    distinct_keys: int | None = Field(
        None, description="keys that its aggregates have met; null: nothing counts them"
    )
    restoring_groups: int = Field(0, description="key groups whose state still comes from a checkpoint")
    recent_busy_ratio: float = Field(0.0, description="share of the last seconds spent working")
    recent_backpressured_ratio: float = Field(
        0.0, description="share of the last seconds spent waiting for those after it"
    )
    recent_records_in_per_second: float = 0.0
    hot_group: int | None = Field(
        None, description="the key group with most of its rows of late; null: none was looked at"
    )
    hot_group_share: float = Field(0.0, description="share of its rows that were of hot_group")
    state_hold_ms_max: float = Field(
        0.0, description="the longest time for which rows waited while state was written or noted"
    )


class HotGroupView(BaseModel):
    """A key group with many of a stage's rows of late."""

    group: int
    share: float = Field(description="its share of the rows of the stage, 0 to 1")


class HotKeyView(BaseModel):
    """A key with many of a stage's rows of late."""

    key: str = Field(description="its columns as text, the first 60 characters")
    group: int = Field(description="its key group")
    share: float = Field(description="its share of the rows of the stage, 0 to 1")


class StageView(BaseModel):
    """One stage and its subtasks."""

    stage: int
    name: str
    parallelism: int
    keyed: bool
    records_in: int
    records_out: int
    subtasks: list[SubtaskView]
    remote_groups: int = Field(
        0,
        description="key groups whose state is still in the store of an earlier owner, or on its way from there",
    )
    recent_hot_group: int | None = Field(None, description="the key group with most of its rows of late")
    recent_hot_group_share: float = Field(0.0, description="its share of the rows of the stage")
    recent_hot_groups: list[HotGroupView] = Field(
        [], description="key groups with most of its rows of late, the hottest first"
    )
    recent_hot_keys: list[HotKeyView] = Field(
        [], description="keys with 1 % of a subtask's rows of late and more, the hottest first"
    )


class TaskManagerView(BaseModel):
    """One registered task manager."""

    address: str
    operator_quota: int
    subtasks: int
    heartbeat_age_ms: int
    http: str = Field("", description="host:port of its pages: questions to state, and metrics")
    waits_for: str = Field(
        "", description="what its rows wait for outside of the job: a database that is away"
    )
    resident_bytes: int = Field(0, description="memory of the process; 0: not known")
    disk_free_bytes: int = Field(0, description="of the disk with its state")
    disk_bytes: int = Field(0, description="size of that disk; 0: not known")
    processor_us: int = Field(0, description="processors' time that the process has used")
    processors: int = Field(0, description="that it may use; 0: not known")
    memory_bytes: int = Field(0, description="that it may use; 0: not known")
    fetched_files: int = Field(
        0, description="that its deployment has fetched from the checkpoint store to open state"
    )
    fetched_bytes: int = 0
    write_stalls: int = Field(0, description="writes that had to wait for its store since the deployment")
    write_stall_ms: int = Field(0, description="how long all of them waited")


class StandbyView(BaseModel):
    """A task manager that keeps the state of another one, so as to take over from it."""

    of: str = Field(description="whose state; host:port")
    task_manager: str = Field(description="who keeps it")
    checkpoint: int | None = Field(
        None, description="the latest checkpoint of which all is there that it keeps; null: of none yet"
    )
    lag_checkpoints: int | None = Field(
        None, description="numbers of checkpoints from there to the latest one"
    )
    lag_bytes: int = Field(0, description="of the checkpoint that it fetches now, what is not there yet")
    held_bytes: int = Field(0, description="that it keeps, of all others together")
    problem: str = Field("", description="why it fetches nothing more; empty: nothing is wrong")


class HeadlineView(BaseModel):
    """How the job is, in one line."""

    verdict: str = Field(description="keeps_up, limited, held_up, not_running, failed or ended")
    text: str
    stage: int | None = Field(None, description="the stage that limits or comes late; null: none does")


class AutoscaledView(BaseModel):
    """A change that the autoscaler decided."""

    time_ms: int
    stage: int
    before: int
    after: int
    text: str


class AutoscalerView(BaseModel):
    """What the autoscaler does."""

    enabled: bool = Field(description="false: it is off")
    dry_run: bool = Field(description="it only says what it would do")
    text: str = Field(description="what it does, and why, or what it waits for; one line")
    slots_missing: int = Field(0, description="subtasks that it would add if task managers had free slots")
    decisions: list[AutoscaledView] = Field([], description="the last ones, oldest first")


class TotalsView(BaseModel):
    """Of the whole job; durations on the task managers' wall clocks."""

    events_in: int = Field(description="rows that sources read, without rejected ones")
    events_out: int = Field(description="rows that reached sinks")
    events_rejected: int = Field(description="records that sources rejected")
    rows_put_aside: int = Field(
        0, description="rows that made a step raise; they are in its dead-letter files"
    )
    rows_late: dict[str, int] = Field(
        {}, description="by step: rows that it dropped because they came too late"
    )
    records_waiting: int | None = Field(
        None, description="records of Kafka and of the log that wait to be read; null: no source knows"
    )
    distinct_keys: int | None = Field(
        description="keys that aggregates have met; null: no step counts its keys (a KeyedProcess does not)"
    )
    first_event_ms: int | None = Field(description="wall clock of the first batch, ms since the epoch")
    last_event_ms: int | None
    events_per_second: float = Field(description="events_in over the time from the first to the last batch")
    recent_events_per_second: float = Field(0.0, description="that sources read in the last seconds")
    latency_p50_ms: float | None = Field(
        None, description="from reading a row to the end of the last step, of rows of late; null: none came"
    )
    latency_p99_ms: float | None = None


class RejectedView(BaseModel):
    """What one step rejected: records that a source could not read, or rows that made a step raise."""

    step: str
    kind: str = Field(description="source or step")
    rejected: int
    rows_in: int | None = Field(
        description="rows that came to the step, with those put aside; null for a source"
    )
    first_reason: str = Field(description="of the first one")
    first_source: str = Field(description="the input file of the first one; empty for a step")
    first_position: int | None = Field(description="its byte offset, or row number in Parquet")
    dead_letters: str = Field(
        description="the dead-letter file of the first one, on the machine of its task manager"
    )


class StatusView(BaseModel):
    """Answer of ``/status``."""

    job_id: str
    job: str
    job_module: str
    parameters: dict[str, object]
    state: str
    state_meaning: str
    headline: HeadlineView = Field(description="whether it keeps up, and what limits it")
    cause: str = ""
    waiting_for: str = Field("", description="what the job needs to go on, if it waits")
    generation: int = Field(description="grows with every restart")
    restarts: int = Field(0, description="since this control plane took over")
    restart_cause: str = Field("", description="why the job started again last")
    latest_checkpoint: int | None = Field(None, description="what a restart begins with")
    latest_checkpoint_path: str = Field("", description="where it is: for --from-checkpoint and weir plan")
    checkpoint_waits_for: str = Field(
        "", description="what the checkpoint that is being made waits for, if that takes longer than a second"
    )
    fingerprint: str
    started_ms: int | None = None
    ended_ms: int | None = None
    task_managers: list[TaskManagerView]
    standbys: list[StandbyView] = Field(
        [], description="by task manager whose state is kept (standby_replicas)"
    )
    standbys_missing: int = Field(
        0, description="for which there are not enough other task managers with free slots"
    )
    stages: list[StageView]
    totals: TotalsView
    autoscaler: AutoscalerView = Field(
        AutoscalerView(enabled=False, dry_run=False, text="off", slots_missing=0, decisions=[])
    )
    rejected: list[RejectedView] = Field([], description="by step; empty: nothing was rejected")


class PlanNodeView(BaseModel):
    """One operator of the logical graph."""

    name: str
    stage: int
    spec: dict[str, object]
    columns: dict[str, str] = Field(description="that are there when the job runs")
    columns_not_read: list[str] = Field([], description="of a source: columns that it does not decode")
    states: list[str] = Field([], description="state tables, as step or step/state")
    key_columns: list[list[str]] = Field([], description="of a keyed step, by input")
    window: str | None = Field(None, description="its windows, or the times that a join pairs")
    event_time: str | None = Field(
        None, description="of a source, or a step that assigns it: event time and watermark"
    )
    sources_by_reading_time: list[str] = Field(
        [],
        description="of windows and joins by event time: sources before it whose rows have none, but are read at it",
    )
    side_outputs: dict[str, dict[str, str]] = Field(
        {}, description="by name: columns of outputs beside its own"
    )


class PlanEdgeView(BaseModel):
    """All channels between two stages."""

    producer_stage: int
    consumer_stage: int
    exchange: str
    key_columns: list[str]
    columns: list[str] | None = Field(None, description="that are sent")
    output: str | None = Field(
        None, description="a side output, as step/output; null: what leaves the last step"
    )


class PlanView(BaseModel):
    """Answer of ``/plan``: logical and physical graph."""

    job: str
    fingerprint: str
    max_parallelism: int
    operators: list[PlanNodeView]
    stages: list[dict[str, object]]
    edges: list[PlanEdgeView]


class RoutingView(BaseModel):
    """Routing table of one stage with a HASH input."""

    stage: int
    routing_version: int
    group_to_subtask: list[int]
    subtasks: list[int] = Field(description="indices of the subtasks that take part")
    groups_per_subtask: list[int] = Field(description="in the order of subtasks")
    owner_epochs: list[int]


class MarkView(BaseModel):
    """Something that happened."""

    time_ms: int = Field(description="wall clock, ms since the epoch")
    kind: str = Field(description="restart, rescale or takeover")
    text: str


class HistoryView(BaseModel):
    """Answer of ``/history``: five minutes by the second, and the rest of an hour by ten seconds."""

    times_ms: list[int] = Field(description="wall clock, ms since the epoch, ascending")
    columns: dict[str, list[float | None]] = Field(
        description="values at these times, by name, as busy/3 of stage 3; null: not known"
    )
    marks: list[MarkView]


class ConfigurationView(BaseModel):
    """Answer of ``/configuration``."""

    control_plane: dict[str, Any]
    autoscaler: dict[str, Any]


class HealthView(BaseModel):
    """Answer of ``/healthz``."""

    status: str = "ok"


class AcceptedView(BaseModel):
    """A request that was queued."""

    accepted: bool
    state: str


class RescaleAcceptedView(BaseModel):
    """A rescale was started."""

    rescale: int
    url: str = Field(description="where its progress is shown")


class RescaleView(BaseModel):
    """Answer of ``/rescales/ID``."""

    id: int
    stage: int
    from_: int = Field(alias="from", description="subtasks before")
    to: int = Field(description="subtasks after")
    subtasks_before: list[int]
    subtasks_after: list[int]
    phase: str
    cause: str
    groups_total: int = Field(description="key groups that move")
    groups_owned: int
    groups_migrated: int
    bytes_moved: int
    groups_relinked: int = Field(
        0, description="key groups that were taken over from the tables of a checkpoint"
    )
    bytes_sent: int = Field(
        0, description="by the old owners: of their caches, and what has changed since that checkpoint"
    )
    started_ms: int
    phases: dict[str, int] = Field(description="wall clock, ms since the epoch, at which each phase began")


class DrainView(BaseModel):
    """A task manager that is being emptied."""

    task_manager: str
    state: str = Field(description="DRAINING, EMPTY (it can be stopped) or FAILED")
    cause: str
    rescales: list[int] = Field(description="ids of the rescales that move its subtasks")
    groups_left: int = Field(description="key groups that their owners still fetch from its store")


class RestoreView(BaseModel):
    """The restore of one subtask. A restored subtask works from its start on; the rest goes on in the background."""

    generation: int = Field(description="the deployment that it belongs to")
    stage: int
    subtask_index: int
    task_manager: str = Field(description="host:port")
    state: str = Field(description="RESTORING, COMPLETE or GIVEN_UP")
    groups_total: int = Field(description="key groups of the subtask that have state in the checkpoint")
    groups_left: int = Field(description="those of them whose state still comes from the checkpoint")
    started_ms: int = Field(description="wall clock of the task manager, ms since the epoch")
    ended_ms: int | None
    duration_ms: int = Field(description="so far, while it is RESTORING; as of a heartbeat")


class CheckpointView(BaseModel):
    """A checkpoint or savepoint."""

    id: int
    kind: str = Field(description="checkpoint or savepoint")
    path: str = Field(description="of a savepoint: give it to --from-savepoint")
    state: str = Field(description="QUEUED, IN_PROGRESS, COMMITTING, COMPLETE, FAILED or ABORTED")
    is_last: bool = Field(description="made when all subtasks had ended")
    stops_job: bool = Field(
        default=False, description="the job stops when it is COMPLETE; it goes on if that fails"
    )
    created_ms: int = Field(description="wall clock, ms since the epoch")
    started_ms: int | None
    ended_ms: int | None
    duration_ms: int | None
    parts_duration_ms: int | None = Field(None, description="until the parts of all subtasks were there")
    commit_duration_ms: int | None = Field(None, description="from then to the end: its manifest was written")
    slowest: str = Field("", description="the subtask whose part came last; empty: none came")
    new_bytes: int = Field(description="written to the checkpoint store for it")
    size_bytes: int = Field(description="all its files; the same file may belong to several checkpoints")
    cause: str


class ErrorView(BaseModel):
    """Answer of a refused request."""

    error: str


class StateRowView(BaseModel):
    """A key of a state and what it has."""

    key: Any
    value: Any


class StateNameView(BaseModel):
    """A state that can be asked."""

    step: str
    state: str


class AskableView(BaseModel):
    """What can be asked."""

    states: list[StateNameView]


class StateKeyView(StateRowView):
    """What a state has for a key."""

    consistency: str = Field(description="latest or checkpoint")
    generation: int = Field(description="the deployment that answered; grows with every restart")
    routing_version: int = Field(default=0, description="of latest: grows with every rescale of the stage")
    watermark_ms: int | None = Field(default=None, description="of latest: event time of the owner")
    checkpoint: int = Field(default=0, description="of checkpoint: its number")
    created_ms: int = Field(default=0, description="of checkpoint: wall clock, ms since the epoch")


class StatePageView(BaseModel):
    """Some keys of a state, or how many there are."""

    rows: list[StateRowView] = []
    order: str = Field(
        default="", description="key: in the order of keys; none: in an order that means nothing"
    )
    continuation: str | None = Field(default=None, description="for the next page, if there is one")
    count: int | None = Field(default=None, description="if that was asked")
    checkpoint: int | None = Field(default=None, description="unless consistency is latest")
    created_ms: int | None = Field(
        default=None, description="of the checkpoint: wall clock, ms since the epoch"
    )
    parts: list[dict[str, Any]] = Field(
        default=[], description="of latest: task manager, subtask, key groups and watermark of each part"
    )
    consistency: str
    generation: int
