"""Tables and pictures of ``python -m experiments workflows run growth``: Spark reads the figures, matplotlib draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir.spark.session import open_session
from workload.figures import medians_by
from workload.pictures import pictures_style, save_picture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PICTURE_NAME, TABLE_NAME = "growth.png", "growth.md"
#: Column, heading of its panel.
_PANELS = (
    ("commands_per_second", "commands per second"),
    ("start_latency_ms_mean", "start latency, mean (ms)"),
    ("pause_ms_max", "longest pause (ms)"),
    ("restore_ms", "first command after kill -9 (ms)"),
)
_COLOUR = "#0072B2"
_TICKS_MAX, _HEADROOM = 6, 1.1


def draw_growth(figures: Path, out: Path) -> list[Path]:
    """Write a table and a picture of a series; returns their paths.

    Args:
        figures: CSV with a row for each size; several rows of one size count with their median.
        out: directory of the results.

    Raises:
        ConfigError: Java or pyspark is missing.
        SparkFailedError: Spark fails.
    """
    with open_session("weir growth", "local[1]", short_run=True) as spark:
        rows = medians(spark, figures)
    return draw_medians(rows, out)


def draw_medians(rows: Sequence[Mapping[str, Any]], out: Path) -> list[Path]:
    """Write a table and a picture of what :func:`medians` returned; returns their paths."""
    table = out / TABLE_NAME
    table.write_text(_table(rows))
    picture = out / PICTURE_NAME
    _draw(rows, picture)
    return [table, picture]


def medians(spark: SparkSession, figures: Path) -> list[dict[str, Any]]:
    """Read figures; return a row for each ``size_bytes``, ascending, with the median of each column of numbers."""
    return medians_by(spark, figures, ["size_bytes"])


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    names = [name for name in rows[0] if name != "size_bytes"]
    lines = ["| payloads | " + " | ".join(names) + " |", "| ---: |" + " ---: |" * len(names)]
    for row in rows:
        cells = [f"{row[name]:,.10g}" for name in names]
        lines.append(f"| {row['size_bytes'] / 2**20:,.0f} MiB | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    with pictures_style():
        from matplotlib import pyplot
        from matplotlib.ticker import MaxNLocator

        figure, grid = pyplot.subplots(2, 2, figsize=(12.0, 7.0), layout="constrained")
        unit, unit_bytes = ("GiB", 2**30) if rows[-1]["size_bytes"] >= 2**30 else ("MiB", 2**20)
        sizes = [row["size_bytes"] / unit_bytes for row in rows]
        for axis, (name, heading) in zip(grid.flat, _PANELS, strict=True):
            axis.plot(sizes, [row[name] for row in rows], marker="o", color=_COLOUR)
            axis.set_title(heading, loc="left")
            axis.set_xlabel(f"payloads in the store ({unit})")
            axis.xaxis.set_major_locator(MaxNLocator(_TICKS_MAX))
            axis.set_ylim(0, _HEADROOM * max(row[name] for row in rows) or 1)
        save_picture(figure, path)
