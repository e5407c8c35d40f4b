"""Section ``controlPlane`` of ``config.json``: every key, default, unit, range and meaning."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from weir.config.section import ListenPort, Section, TextList, check_advertised, setting
from weir.types import MAX_PARALLELISM_MAX


class ControlPlaneConfig(Section):
    """Section ``controlPlane``."""

    host: str = setting(
        "127.0.0.1",
        "Address that the control plane listens on (`0.0.0.0`: all of the machine's); nothing is authenticated.",
        min_length=1,
    )
    advertised_host: str = setting(
        "",
        "Name or address under which others reach the control plane, where that is not `host`; needed where `host` is "
        "`0.0.0.0` or `::`. Empty: `host`.",
    )
    cp_grpc_port: ListenPort = setting(8008, "gRPC port, where task managers register; 0: any free one.")
    control_port: ListenPort = setting(
        9008, "HTTP port of `/status`, `/metrics` and the rest; 0: any free one."
    )
    allowed_hosts: TextList = setting(
        (),
        "Further names and addresses under which the HTTP interface may be asked for (header `Host`), without port; "
        "`*`: any. Always allowed: `localhost`, `127.0.0.1`, `[::1]`, `host` and `advertised_host`.",
    )
    allowed_origins: TextList = setting(
        (),
        "Web pages of other servers that may use the HTTP interface (header `Origin`), as "
        "`https://dashboard.example`; `*`: any. The control plane's own pages and programs like curl always may.",
    )
    min_task_managers: int = setting(
        1, "Registered task managers to wait for before the job is placed.", "processes", ge=1, le=1000
    )
    heartbeat_interval_ms: int = setting(
        200,
        "How often a task manager reports; half as often while its subtasks run and only their counters change, and "
        "while no row comes, every third of `lease_timeout_ms`, or 0.7 s.",
        "ms",
        ge=10,
        le=60_000,
    )
    lease_timeout_ms: int = setting(
        2000,
        "A task manager that has not reported for so long counts as lost; must exceed twice "
        "`heartbeat_interval_ms`.",
        "ms",
        ge=50,
        le=600_000,
    )
    max_parallelism: int = setting(
        128,
        "Number of key groups, hence the most subtasks that a keyed stage can have.",
        "groups",
        ge=1,
        le=MAX_PARALLELISM_MAX,
    )
    scale_up_portion: float = setting(
        0.75,
        "With `autoscaler.enabled`: a stage whose input channels hold more than this part of `operator_bufferSize`, "
        "and that works most of the time, gets more subtasks at once.",
        "fraction",
        gt=0,
        le=1,
    )
    watermark_interval: float = setting(
        0.2,
        "How often sources emit a watermark; one that keeps up and reads many rows does so eight times as often.",
        "s",
        gt=0,
        le=3600,
    )
    out_of_order_grace_period: float = setting(
        2, "Subtracted from the highest event time seen, to give late events a chance.", "s", ge=0, le=86_400
    )
    idle_timeout_ms: int = setting(
        1000,
        "An input without data for so long no longer holds back the watermark.",
        "ms",
        ge=1,
        le=86_400_000,
    )
    checkpoint_uri: str = setting(
        "checkpoints",
        "The checkpoint store: a directory that all task managers reach, or a URI that `pyarrow.fs` understands "
        "(`s3://bucket/path`). Empty: no checkpoints, and a failure ends the job.",
    )
    checkpoint_interval_ms: int = setting(
        1000,
        "How often a checkpoint is begun; 0: only on request. A fifth as often, but every 10 s, while nothing comes "
        "that it would have to cover.",
        "ms",
        ge=0,
        le=86_400_000,
    )
    checkpoint_pause_ms: int = setting(
        200,
        "At least so long between the end of a checkpoint and the next one's beginning.",
        "ms",
        ge=0,
        le=86_400_000,
    )
    checkpoint_timeout_ms: int = setting(
        60_000,
        "A checkpoint that takes longer is given up, and the next one has twice as long. That does not restart the "
        "job: `/status` says what it waits for.",
        "ms",
        ge=100,
        le=86_400_000,
    )
    checkpoint_alignment_timeout_ms: int = setting(
        1000,
        "A barrier that waits longer, for those of other inputs or behind rows of a slow step, overtakes the rows "
        "before it, which become part of the checkpoint: back-pressure does not stop checkpoints.",
        "ms",
        ge=0,
        le=86_400_000,
    )
    checkpoints_retained: int = setting(
        3, "Complete checkpoints that are kept.", "checkpoints", ge=1, le=1000
    )
    checkpoint_failures_max: int = setting(
        10,
        "Checkpoints in a row that may fail (a full disk, for example) before the job counts as failed; 0: any number.",
        "checkpoints",
        ge=0,
        le=1_000_000,
    )
    restart_attempts: int = setting(
        10,
        "Restarts from the latest checkpoint without a stable period in between, then the job fails; 0: no restart. "
        "Lost task managers and connections, and full disks, are not counted, but processes that die one after the "
        "other without a complete checkpoint in between.",
        "restarts",
        ge=0,
        le=1_000_000,
    )
    restart_delay_ms: int = setting(
        100,
        "Wait before the second restart in a row; doubles up to `restart_delay_ms_max`.",
        "ms",
        ge=0,
        le=600_000,
    )
    restart_delay_ms_max: int = setting(10_000, "Longest wait before a restart.", "ms", ge=0, le=3_600_000)
    restart_stable_ms: int = setting(
        60_000,
        "A job that ran for so long without a failure starts to count, and to wait, anew.",
        "ms",
        ge=0,
        le=86_400_000,
    )
    poison_attempts: int = setting(
        3,
        "A step that raised in so many restarts meets the same rows each time: after the next restart, rows that make "
        "it raise go to the dead letters, and the job goes on. 0: never.",
        "restarts",
        ge=0,
        le=1000,
    )
    disk_hold_bytes: int = setting(
        512 << 20,
        "Sources read nothing while the disk with the state of a task manager has less room than this, or than a tenth "
        "of the disk if that is less; they read on with half as much again. Twice as much is warned of. State in "
        "memory has no disk. 0: they always read.",
        "bytes",
        ge=0,
        le=1 << 50,
    )
    standby_replicas: int = setting(
        0,
        "Of every task manager that has state, so many others fetch the tables of each complete checkpoint in the "
        "background, so as to take over without fetching them. No effect where the checkpoint store is on the file "
        "system of `rocksDBPath`. 0: none.",
        "task managers",
        ge=0,
        le=3,
    )
    savepoint_roots: TextList = setting(
        ("savepoints",),
        "Directories, or URIs such as `s3://bucket/path`, below which `POST /savepoint` may write; relative ones are "
        "in the control plane's working directory. Empty: no savepoints.",
    )
    dead_letter_share_max: float = setting(
        0.01,
        "The job fails when a source has rejected more than this share of its records, or a step put aside more than "
        "this share of its rows (see `poison_attempts`), and more of them than `dead_letter_grace`; 1: never, but if a "
        "source has rejected all.",
        "fraction",
        ge=0,
        le=1,
    )
    dead_letter_grace: int = setting(
        100,
        "So many records of a source may be rejected, and rows of a step put aside, whatever their share; but at the "
        "end of the job at most half of them.",
        "rows",
        ge=0,
        le=1_000_000_000,
    )
    strict: bool = setting(
        False, "The job fails at the first record that a source rejects and the first row that is put aside."
    )
    state_path: str = setting(
        "control_plane.json",
        "File that holds what a control plane needs to take over a running job; empty: none.",
    )
    etcd_endpoints: TextList = setting(
        (),
        "etcd servers, `host:port` or `http://host:port`, tried in turn: they keep the record instead of "
        "`state_path`, and elect the one of several control planes that leads; the others wait.",
    )
    test_etcd_conn: bool = setting(
        False, "Accepted with a warning, and ignored: no etcd is used.", deprecated=True
    )

    @model_validator(mode="after")
    def _others_can_reach_it(self) -> Self:
        check_advertised(self.host, self.advertised_host)
        return self

    @model_validator(mode="after")
    def _lease_outlives_a_lost_heartbeat(self) -> Self:
        if self.lease_timeout_ms <= 2 * self.heartbeat_interval_ms:
            raise PydanticCustomError(
                "lease_timeout_ms",
                "must exceed twice heartbeat_interval_ms ({heartbeat} ms), so at least {least}",
                {"heartbeat": self.heartbeat_interval_ms, "least": 2 * self.heartbeat_interval_ms + 1},
            )
        return self
