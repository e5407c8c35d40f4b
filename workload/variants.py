"""Tables and pictures of ``experiments workflows run payloads`` and of other series in which one setting varies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir.spark.session import open_session
from workload.figures import medians_by
from workload.pictures import BAR_COLOURS, pictures_style, save_picture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PICTURE_NAME, TABLE_NAME = "variants.png", "variants.md"
#: Column, heading of its panel; those that are 0 in all variants are left out.
_PANELS = (
    ("commands_per_second", "commands per second"),
    ("cpu_us_per_command", "CPU of the task managers for a command (µs)"),
    ("us_per_read", "a read of the store (µs)"),
    ("block_cache_hits", "data blocks found in the block cache"),
    ("merged_bytes_per_byte", "bytes that merges wrote for a byte of payload"),
    ("store_kib", "the store on disk (KiB)"),
)
_KEYS = ("position", "variant")
_COLUMNS, _PANEL_IN = 2, 3.2


def draw_variants(figures: Path, out: Path) -> list[Path]:
    """Write a table and a picture of a series; returns their paths.

    Args:
        figures: CSV with a row for each round of a variant; the medians count.
        out: directory of the results.

    Raises:
        ConfigError: Java or pyspark is missing.
        SparkFailedError: Spark fails.
    """
    with open_session("weir variants", "local[1]", short_run=True) as spark:
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
    """Read figures; return a row for each variant in their order, with the median of each column of numbers."""
    return medians_by(spark, figures, _KEYS)


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    names = [name for name in rows[0] if name not in _KEYS]
    lines = ["| | " + " | ".join(row["variant"] for row in rows) + " |", "| --- |" + " ---: |" * len(rows)]
    for name in names:
        lines.append(f"| {name} | " + " | ".join(f"{row[name]:,.10g}" for row in rows) + " |")
    return "\n".join(lines) + "\n"


def _draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    panels = [panel for panel in _PANELS if any(row.get(panel[0]) for row in rows)]
    lines = -(-len(panels) // _COLUMNS)
    with pictures_style():
        from matplotlib import pyplot

        figure, grid = pyplot.subplots(
            lines, _COLUMNS, figsize=(12.0, _PANEL_IN * lines), layout="constrained", squeeze=False
        )
        names = [row["variant"] for row in rows]
        for axis, (name, heading) in zip(grid.flat, panels, strict=False):
            axis.bar(names, [row[name] for row in rows], color=BAR_COLOURS[0])
            axis.set_title(heading, loc="left")
            axis.grid(visible=False, axis="x")
        for axis in grid.flat[len(panels) :]:
            axis.set_visible(False)
        save_picture(figure, path)
