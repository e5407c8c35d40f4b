"""Pictures of ``python -m benchmarks wal``: Spark takes medians of the runs in its CSV file, bars show both systems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir.errors import InputError
from weir.spark.session import DEFAULT_MASTER, open_session, spark_path
from workload.pictures import BAR_COLOURS, pictures_style, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pyspark.sql import SparkSession

_THROUGHPUT = "Throughput(MBs/sec)"
_SYSTEMS = ("weir", "kafka")
_LABELS = {"weir": "Weir", "kafka": "Kafka"}
_WIDTH_IN, _BAR_IN = 12.0, 0.55

Row = dict[str, Any]


@dataclass(frozen=True)
class _Panel:
    """Cases that are compared: which rows, what stands beside their bars, and the figure that is drawn."""

    title: str
    takes: Callable[[Row], bool]
    label: Callable[[Row], str]
    figure: str = _THROUGHPUT
    unit: str = "acknowledged MiB/s"


def _acks(row: Row) -> str:
    return "acks=all" if row["ACK"] == "-1" else f"acks={row['ACK']}"


def _plain(row: Row) -> bool:
    """Return whether nothing but data, acks and mode differs from the usual."""
    usual = "lz4" if row["Data"] != "random" else "none"
    return (
        row["Place"] == "memory"
        and row["Retention"] == "by size"
        and row["Compression"] == usual
        and "in flight" not in row["Case"]
        and "batches of 1" not in row["Case"]
        and "idempotent" not in row["Case"]
    )


_PICTURES = {
    "log_acks.png": (
        _Panel(
            "sync: one record at a time",
            lambda row: row["Mode"] == "sync" and _plain(row),
            _acks,
            "RecordsPerSecond",
            "acknowledged records/s",
        ),
        _Panel(
            "sync: half of the answers come within",
            lambda row: row["Mode"] == "sync" and _plain(row),
            _acks,
            "P50Ms",
            "ms",
        ),
        _Panel(
            "async, record by record",
            lambda row: row["Mode"] == "send" and row["Data"] in ("random", "words") and _plain(row),
            lambda row: f"{row['Data']}, {_acks(row)}",
        ),
    ),
    "log_batches.png": (
        _Panel(
            "async, acks=all: batches and compression",
            lambda row: (
                row["Mode"] == "send"
                and row["ACK"] == "-1"
                and row["Place"] == "memory"
                and "in flight" not in row["Case"]
                and "idempotent" not in row["Case"]
            ),
            lambda row: (
                f"{row['Data']}, {row['Compression']}"
                + (", batches of 1" if "batches of 1" in row["Case"] else "")
            ),
        ),
        _Panel(
            "the same in arrays, send_many (Kafka: produce_batch)",
            lambda row: row["Mode"] == "send_many" and row["ACK"] == "-1",
            lambda row: f"{row['Data']}, {row['Compression']}",
        ),
        _Panel(
            "async, acks=all, random bytes: batches in flight",
            lambda row: "in flight" in row["Case"] or "idempotent" in row["Case"],
            lambda row: "idempotent" if "idempotent" in row["Case"] else f"{row['MaxOpenReqs']} in flight",
        ),
    ),
    "log_storage.png": (
        _Panel(
            "sync, acks=1: retention",
            lambda row: row["Mode"] == "sync" and row["Retention"] != "by size",
            lambda row: row["Retention"],
        ),
        _Panel(
            "async, acks=1: retention",
            lambda row: row["Mode"] == "send" and row["Retention"] != "by size",
            lambda row: row["Retention"],
        ),
        _Panel(
            "sync: memory and disk",
            lambda row: row["Mode"] == "sync" and row["Retention"] == "by size",
            lambda row: f"{row['Place']}, {_acks(row)}",
        ),
        _Panel(
            "async, acks=all, random bytes: memory and disk",
            lambda row: (
                row["Mode"] == "send"
                and row["Data"] == "random"
                and row["ACK"] == "-1"
                and row["Retention"] == "by size"
                and (row["Place"] == "disk" or _plain(row))
            ),
            lambda row: row["Place"],
        ),
    ),
}
PICTURE_NAMES = tuple(_PICTURES)


def draw_log_pictures(csv: Path, out: Path, *, master: str = DEFAULT_MASTER) -> list[Path]:
    """Draw what is in a CSV file of ``benchmarks wal`` into a directory; earlier pictures are replaced.

    Args:
        csv: as the benchmark has written it.
        out: made if it is absent.
        master: Spark's.

    Returns:
        Paths of the pictures; one without any case is not drawn.

    Raises:
        InputError: there is no such file, or it has none of these cases.
        ConfigError: Java or pyspark is missing.
        SparkFailedError: Spark fails.
    """
    if not csv.is_file():
        raise InputError(f"{csv}: there is no such file; python -m benchmarks wal --csv {csv} makes it")
    with open_session("weir wal", master, short_run=True) as spark:
        rows = medians(spark, csv)
    written = draw_medians(rows, out)
    if not written:
        raise InputError(f"{csv} has no case that is drawn: run more of them, or all")
    return written


def draw_medians(rows: Sequence[Row], out: Path) -> list[Path]:
    """Draw what :func:`medians` has returned; returns the paths of the pictures that have a case."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name, panels in _PICTURES.items():
        shown = [(panel, found) for panel in panels if (found := [row for row in rows if panel.takes(row)])]
        if shown:
            with pictures_style():
                save_picture(_picture(shown), out / name)
            written.append(out / name)
    return written


def medians(spark: SparkSession, csv: Path) -> list[Row]:
    """Return a row for each case and system, in the file's order, with the median, least and greatest of its runs.

    Raises:
        InputError: the file is none of ``benchmarks wal``.
    """
    from pyspark.sql import functions as sql

    table = spark.read.csv(spark_path(csv.resolve()), header=True)
    missing = {_THROUGHPUT, "System", "Case", "P50Ms"} - set(table.columns)
    if missing:
        raise InputError(f"{csv} has no column {min(missing)}: it is no file of python -m benchmarks wal")
    # The bracket in a name is no call.
    figures = {
        name: sql.col(f"`{name}`").cast("double") for name in (_THROUGHPUT, "RecordsPerSecond", "P50Ms")
    }
    given = ("ACK", "MaxOpenReqs", "Mode", "Data", "Compression", "Retention", "Place")
    numbered = table.withColumn("_number", sql.monotonically_increasing_id())
    grouped = numbered.groupBy("Case", "System").agg(
        sql.min("_number").alias("_number"),
        *(sql.first(name).alias(name) for name in given),
        *(
            how(column).alias(f"{what} {name}")
            for name, column in figures.items()
            for what, how in (("median", sql.median), ("least", sql.min), ("greatest", sql.max))
        ),
    )
    return [row.asDict() for row in grouped.orderBy("_number").collect()]


def _picture(shown: Sequence[tuple[_Panel, Sequence[Row]]]) -> Figure:
    from matplotlib import pyplot

    counts = [len({panel.label(row) for row in found}) for panel, found in shown]
    figure, grid = pyplot.subplots(
        len(shown),
        1,
        figsize=(_WIDTH_IN, 1.2 + sum(0.9 + _BAR_IN * count for count in counts)),
        height_ratios=[1.0 + count for count in counts],
        squeeze=False,
        layout="constrained",
    )
    for (panel, found), (axis,) in zip(shown, grid, strict=True):
        _bars(axis, panel, found)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle("A replicated log of three brokers: median of the runs, least and greatest", fontsize=15)
    return figure


def _bars(axis: Axes, panel: _Panel, found: Sequence[Row]) -> None:
    labels = list(dict.fromkeys(panel.label(row) for row in found))
    half = 0.38
    for number, system in enumerate(_SYSTEMS):
        rows = {panel.label(row): row for row in found if row["System"] == system}
        places = [index + (number - 0.5) * half for index, label in enumerate(labels) if label in rows]
        some = [rows[label] for label in labels if label in rows]
        values = [float(row[f"median {panel.figure}"]) for row in some]
        spread = [
            [value - float(row[f"least {panel.figure}"]) for value, row in zip(values, some, strict=True)],
            [float(row[f"greatest {panel.figure}"]) - value for value, row in zip(values, some, strict=True)],
        ]
        axis.barh(places, values, half, color=BAR_COLOURS[number], label=_LABELS[system])
        axis.errorbar(values, places, xerr=spread, fmt="none", ecolor="#444444", elinewidth=1.2, capsize=3)
        for place, value, row in zip(places, values, some, strict=True):
            end = float(row[f"greatest {panel.figure}"])
            axis.annotate(
                f" {value:,.3g}" if value < 1000 else f" {value:,.0f}", (end, place), va="center", fontsize=10
            )
    axis.set_yticks(range(len(labels)), labels)
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.set_xlim(left=0, right=axis.get_xlim()[1] * 1.06)
    axis.set_xlabel(panel.unit)
    axis.set_title(panel.title, loc="left", fontweight="bold")
