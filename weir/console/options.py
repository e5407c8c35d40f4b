"""Arguments and options of the commands of ``weir``, with what they say of themselves."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Runner(StrEnum):
    """What runs a job."""

    WEIR = "weir"
    SPARK = "spark"


class TableForm(StrEnum):
    """How rows are written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


class Store(StrEnum):
    """Where keyed state lives."""

    ROCKSDB = "rocksdb"
    MEMORY = "memory"
    CASSANDRA = "cassandra"


JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="A file (counts.py, dir/counts.py) or a module (my_jobs.counts).")
]
ParamOption = Annotated[
    list[str] | None,
    typer.Option(
        "--param", "-p", metavar="NAME=VALUE", help="A parameter of the job; can be given several times."
    ),
]
ConfigOption = Annotated[
    Path | None, typer.Option(help="Configuration file (default: config.json, if there is one).")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key: taskManager.batch_size=1000."),
]
StoreOption = Annotated[
    Store | None,
    typer.Option(
        help="Where keyed state lives; sets taskManager.state_backend (default: what the configuration says)."
    ),
]
FollowOption = Annotated[
    bool,
    typer.Option("--follow/--no-follow", help="Show the job live; where there is no terminal, as lines."),
]
KeepDirOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where the run keeps state, checkpoints, logs (default: .weir/JOB)."),
]
SavepointOption = Annotated[
    str | None, typer.Option(metavar="PATH", help="Start from this savepoint (made by POST /savepoint).")
]
CheckpointOption = Annotated[
    str | None, typer.Option(metavar="PATH", help="Start from this retained checkpoint.")
]
FreshOption = Annotated[
    bool,
    typer.Option(
        "--start-fresh", help="Discard the job of an earlier run that was killed, and start from nothing."
    ),
]
DroppedStateOption = Annotated[
    bool,
    typer.Option(
        "--allow-dropped-state",
        help="Drop state of the savepoint or checkpoint whose step the job no longer has.",
    ),
]
StrictOption = Annotated[
    bool,
    typer.Option("--strict", help="Fail at the first record that is rejected, or row that is put aside."),
]
HttpPortOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        help="HTTP port of /status and /state; 0: any free one (default: 9008, or any if that is taken).",
    ),
]
ReportOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write what the page of the job shows into this HTML file at the end."),
]
RunnerOption = Annotated[
    Runner,
    typer.Option(
        help="What runs the job: task managers of Weir, or Spark (docs/runners.md).", show_choices=True
    ),
]
StreamingOption = Annotated[
    bool | None,
    typer.Option(
        "--streaming/--no-streaming",
        help="With --runner spark: follow the sources, as a stream, or read them once (default: once, if all end).",
    ),
]
MasterOption = Annotated[
    str, typer.Option(help="With --runner spark: local[N], spark://HOST:PORT, yarn or k8s://...")
]
SparkConfOption = Annotated[
    list[str] | None,
    typer.Option("--spark-conf", metavar="KEY=VALUE", help="With --runner spark: a setting of Spark."),
]
SparkCheckpointsOption = Annotated[
    str | None,
    typer.Option(
        metavar="PATH", help="Of a stream: where Spark keeps its checkpoints (default: .weir/JOB/spark)."
    ),
]
