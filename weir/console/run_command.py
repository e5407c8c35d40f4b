"""The command ``weir run``: what it takes, and what becomes of that for the processes that it starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from weir.console.options import (
    CheckpointOption,
    ConfigOption,
    DroppedStateOption,
    FollowOption,
    FreshOption,
    HttpPortOption,
    JobArgument,
    KeepDirOption,
    MasterOption,
    ParamOption,
    ReportOption,
    Runner,
    RunnerOption,
    SavepointOption,
    SetOption,
    SparkCheckpointsOption,
    SparkConfOption,
    StoreOption,
    StreamingOption,
    StrictOption,
)
from weir.process.entry_point import VerboseOption, run

RUN_EPILOG = """
Examples:

\b
weir run weir.examples.word_count
weir run counts.py
weir run counts.py --param input=events.jsonl --param parallelism=4
weir run hot.sql --param parallelism=2
weir run my_jobs.counts --task-managers 2
weir run counts.py --store cassandra
weir run counts.py --set taskManager.batch_size=1000 --no-follow > counts.jsonl

\b
Exit code: 0 the job finished, 1 it failed (the last line says why), 2 the job, a flag or a setting is wrong,
3 it was cancelled (Ctrl-C, SIGTERM, POST /cancel); 128 + the signal's number after a second signal.
"""


def run_command(
    job: JobArgument,
    param: ParamOption = None,
    task_managers: Annotated[int, typer.Option(min=1, max=64, help="Number of task managers.")] = 1,
    config: ConfigOption = None,
    set_flags: SetOption = None,
    store: StoreOption = None,
    follow: FollowOption = True,
    keep_dir: KeepDirOption = None,
    http_port: HttpPortOption = None,
    from_savepoint: SavepointOption = None,
    from_checkpoint: CheckpointOption = None,
    start_fresh: FreshOption = False,
    allow_dropped_state: DroppedStateOption = False,
    strict: StrictOption = False,
    report: ReportOption = None,
    verbose: VerboseOption = False,
    runner: RunnerOption = Runner.WEIR,
    master: MasterOption = "local[*]",
    streaming: StreamingOption = None,
    spark_conf: SparkConfOption = None,
    checkpoints: SparkCheckpointsOption = None,
) -> None:
    """Run a job on processes of this machine until it ends. The exit code says how it ended.

    The command starts a control plane and task managers on free ports; HTTP is on 9008 if that is free. Standard
    output has only what the job prints. The same command after a kill goes on from the latest checkpoint; after an end
    it begins the job anew.
    """

    def start_on_spark() -> int:
        from weir.console.given_job import GivenJob
        from weir.console.spark_runs import SparkOptions, run_on_spark

        given = GivenJob(job, param or [], config, set_flags or [])
        return run_on_spark(
            SparkOptions(given, master, streaming, spark_conf or [], checkpoints, keep_dir, strict=strict)
        )

    def start() -> int:
        from weir.console.job_files import find_job
        from weir.console.run_directory import RunDirectory
        from weir.console.running import RunOptions, default_directory, run_job

        found = find_job(job)
        backend = [] if store is None else [f"taskManager.state_backend={store.value}"]
        of_start: dict[str, str | Path | bool | None] = {
            "--from-savepoint": from_savepoint,
            "--from-checkpoint": from_checkpoint,
            "--start-fresh": start_fresh,
            "--allow-dropped-state": allow_dropped_state,
            "--strict": strict,
            "--report": None if report is None else report.absolute(),
        }
        return run_job(
            RunOptions(
                found,
                RunDirectory(keep_dir) if keep_dir is not None else default_directory(found),
                task_managers=task_managers,
                http_port=http_port,
                follow=follow,
                verbose=verbose,
                shared=_given({"--config": config}) + _repeated("--set", [*backend, *(set_flags or [])]),
                control_plane=_repeated("--param", [*found.parameters, *(param or ())]) + _given(of_start),
            )
        )

    run("weir run", start_on_spark if runner is Runner.SPARK else start)


def _given(values: Mapping[str, str | Path | bool | None]) -> list[str]:
    """Flags with their values, without those that were not given; True: the flag alone."""
    flags: list[str] = []
    for flag, value in values.items():
        if value is not None and value is not False:
            flags += [flag] if value is True else [flag, str(value)]
    return flags


def _repeated(flag: str, values: list[str]) -> list[str]:
    return [item for value in values for item in (flag, value)]
