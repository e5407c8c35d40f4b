"""The PNGs: latency over time, all runs in one chart, percentiles and throughput; made from bounded numbers only."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from workload.analysis import FileAnalysis, Slice
from workload.report import milliseconds_text

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LATENCY_NAME = "latency_over_time.png"
PERCENTILES_NAME = "percentiles.png"
THROUGHPUT_NAME = "throughput.png"
RUNS_NAME = "all_runs.png"
PICTURE_NAMES = (LATENCY_NAME, RUNS_NAME, PERCENTILES_NAME, THROUGHPUT_NAME)

#: Okabe and Ito's colours, which colour-blind readers tell apart too; line styles go on where they end.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
#: Of two things that are compared.
BAR_COLOURS = _COLOURS[:2]
_LINE_STYLES = ("-", "--", ":", "-.")
_POINT_COLOUR, _P50_COLOUR, _P99_COLOUR, _MARK_COLOUR = "#7FA6CC", "#0072B2", "#D55E00", "#444444"
_PANELS_MAX = 10
_DOTS_PER_INCH = 100
_WIDTH_IN = 12.0
#: A logarithmic axis where the largest value is so many times the typical one; a linear one would be flat.
_LOG_RATIO = 20.0
#: Up to this ratio of largest to smallest, a logarithmic axis is labelled within its decades, too.
_FEW_DECADES_RATIO = 500.0
#: Smallest latency on a logarithmic axis; smaller ones, also negative ones of skewed clocks, are drawn there.
_LOG_FLOOR_MS = 1e-3
_STYLE: dict[Any, Any] = {
    "figure.dpi": _DOTS_PER_INCH,
    "font.size": 12,
    "axes.titlesize": 12,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
}


def draw_pictures(analyses: Sequence[FileAnalysis], out: Path, *, title: str | None = None) -> list[Path]:
    """Draw all pictures into an existing directory; existing ones are replaced.

    Args:
        analyses: At least one.
        out: The directory.
        title: Added to each picture's heading.

    Returns:
        The paths of the pictures.
    """
    drawings: dict[str, Callable[[Sequence[FileAnalysis], str], Figure]] = {
        LATENCY_NAME: _latency_over_time,
        RUNS_NAME: _all_runs,
        PERCENTILES_NAME: _percentiles,
        THROUGHPUT_NAME: _throughput,
    }
    paths = []
    prefix = f"{_plain(title)}: " if title else ""
    for name, draw in drawings.items():
        with pictures_style():
            save_picture(draw(analyses, prefix), out / name)
        paths.append(out / name)
    return paths


@contextmanager
def pictures_style() -> Iterator[None]:
    """Draw in the style of all pictures inside the block."""
    import matplotlib

    matplotlib.use("Agg")
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # A label in a script that the font lacks shows boxes; that is no reason to write to the terminal.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def save_picture(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, and close it; a reader never sees half of it."""
    from matplotlib import pyplot
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    partial = path.with_name(f".{path.name}.partial")
    # Not savefig, which lays figures out and draws them twice.
    FigureCanvasAgg(figure).print_png(partial)  # type: ignore[no-untyped-call]
    pyplot.close(figure)
    os.replace(partial, path)


def _latency_over_time(analyses: Sequence[FileAnalysis], prefix: str) -> Figure:
    """Return one panel per file on common axes: single events, and p50 and p99 per slice."""
    from matplotlib import pyplot

    shown = analyses[:_PANELS_MAX]
    height_in = 1.5 + max(2.6, 4.6 - 1.0 * len(shown)) * len(shown)
    figure, grid = pyplot.subplots(
        len(shown),
        1,
        figsize=(_WIDTH_IN, height_in),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    axes = [row[0] for row in grid]
    thinned = False
    for axis, analysis in zip(axes, shown, strict=True):
        thinned |= len(analysis.points) < analysis.statistics.events
        _latency_panel(axis, analysis)
    left_out = f", first {len(shown)} of {len(analyses)} files" if len(shown) < len(analyses) else ""
    events = "sample of events" if thinned else "all events"
    figure.suptitle(f"{prefix}End-to-end latency over time ({events}{left_out})", fontsize=15)
    drawn = [value for analysis in shown for _, value in analysis.points]
    maxima = [piece.statistics.max_ms for analysis in shown for piece in analysis.slices]
    _latency_scale(axes, drawn + maxima)
    axes[-1].set_xlabel("time since first arrival (s)")
    figure.supylabel("latency (ms)", fontsize=12)
    handles: dict[str, Artist] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=5,
        frameon=False,
        markerscale=1.6,
    )
    return figure


def _latency_panel(axis: Axes, analysis: FileAnalysis) -> None:
    seconds = f"{analysis.slice_s} s"
    few = len(analysis.points) < 2_000
    axis.plot(
        [point[0] for point in analysis.points],
        [point[1] for point in analysis.points],
        linestyle="none",
        marker="o",
        markersize=3.5 if few else 2.0,
        markeredgewidth=0,
        alpha=0.7 if few else 0.45,
        color=_POINT_COLOUR,
        label="one event",
        rasterized=True,
    )
    middles, pieces = _with_gaps(analysis)
    marker = "o" if len(pieces) <= 60 else ""
    for percent, colour in ((50, _P50_COLOUR), (99, _P99_COLOUR)):
        values = [_value(piece, f"p{percent}_ms") for piece in pieces]
        label = f"p{percent} per {seconds}"
        axis.plot(middles, values, color=colour, linewidth=2, marker=marker, markersize=4, label=label)
    maxima = [_value(piece, "max_ms") for piece in pieces]
    axis.plot(middles, maxima, linestyle="none", marker="_", color=_MARK_COLOUR, label=f"max per {seconds}")
    _marks(axis, analysis, _MARK_COLOUR, "scale requested")
    numbers = analysis.statistics
    axis.set_title(_shortened(analysis.file.label, 60), loc="left", fontweight="bold")
    facts = zip(("p50", "p99", "max"), (numbers.p50_ms, numbers.p99_ms, numbers.max_ms), strict=True)
    axis.set_title(
        "   ".join(f"{name} {milliseconds_text(v)} ms" for name, v in facts), loc="right", fontsize=11
    )


def _all_runs(analyses: Sequence[FileAnalysis], prefix: str) -> Figure:
    """Return one panel with the latencies of every file, and the moments of scaling."""
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(
        figsize=(_WIDTH_IN, 6.4 + _legend_height_in(analyses)), layout="constrained"
    )
    values: list[float] = []
    for index, analysis in enumerate(analyses):
        points = sorted(analysis.points)
        values += [latency_ms for _, latency_ms in points]
        axis.plot(
            [since_s for since_s, _ in points],
            [latency_ms for _, latency_ms in points],
            color=_COLOURS[index % len(_COLOURS)],
            linestyle=_LINE_STYLES[index // len(_COLOURS) % len(_LINE_STYLES)],
            linewidth=1.2,
            alpha=0.8,
            # A line through one point is invisible.
            marker="o" if len(points) == 1 else "",
            label=_shortened(analysis.file.label, 110),
        )
        _marks(axis, analysis, _COLOURS[index % len(_COLOURS)], None)
    _latency_scale([axis], values)
    axis.set_xlabel("time since first arrival (s)")
    axis.set_ylabel("end-to-end latency (ms)")
    figure.suptitle(f"{prefix}Latency of all runs", fontsize=15)
    _legend(figure, axis, analyses)
    return figure


def _percentiles(analyses: Sequence[FileAnalysis], prefix: str) -> Figure:
    """Return one panel per percentile and one line per file."""
    from matplotlib import pyplot

    names = ("p50_ms", "p95_ms", "p99_ms", "max_ms")
    figure, grid = pyplot.subplots(
        2, 2, figsize=(_WIDTH_IN, 8.2 + _legend_height_in(analyses)), sharex=True, layout="constrained"
    )
    for axis, name in zip(grid.flat, names, strict=True):
        drawn = []
        for index, analysis in enumerate(analyses):
            middles, pieces = _with_gaps(analysis)
            values = [_value(piece, name) for piece in pieces]
            drawn += [value for value in values if not math.isnan(value)]
            _file_line(axis, analysis, index, middles, values)
        axis.set_title(name.removesuffix("_ms"), loc="left", fontweight="bold")
        _latency_scale([axis], drawn)
        axis.set_ylabel("latency (ms)")
        axis.tick_params(labelbottom=True)
    for axis in grid[-1]:
        axis.set_xlabel("time since first arrival (s)")
    figure.suptitle(f"{prefix}Latency percentiles per {_slice_text(analyses)}", fontsize=15)
    _legend(figure, grid.flat[0], analyses)
    return figure


def _throughput(analyses: Sequence[FileAnalysis], prefix: str) -> Figure:
    """Return events per second at the sink, one line per file; the last, unfinished slice is left out."""
    from matplotlib import pyplot
    from matplotlib.ticker import EngFormatter

    figure, axis = pyplot.subplots(
        figsize=(_WIDTH_IN, 5.4 + _legend_height_in(analyses)), layout="constrained"
    )
    for index, analysis in enumerate(analyses):
        middles, pieces = _with_gaps(analysis)
        rates = [0.0 if piece is None else piece.statistics.events / analysis.slice_s for piece in pieces]
        keep = slice(0, -1 if len(rates) > 2 else None)
        _file_line(axis, analysis, index, middles[keep], rates[keep])
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0, top=1.08 * axis.get_ylim()[1])
    axis.yaxis.set_major_formatter(EngFormatter(sep=""))
    axis.set_xlabel("time since first arrival (s)")
    axis.set_ylabel("events per second")
    figure.suptitle(f"{prefix}Throughput at the sink per {_slice_text(analyses)}", fontsize=15)
    _legend(figure, axis, analyses)
    return figure


def _file_line(
    axis: Axes, analysis: FileAnalysis, index: int, middles: Sequence[float], values: Sequence[float]
) -> None:
    colour = _COLOURS[index % len(_COLOURS)]
    axis.plot(
        middles,
        values,
        color=colour,
        linestyle=_LINE_STYLES[index // len(_COLOURS) % len(_LINE_STYLES)],
        linewidth=2,
        marker="o" if len(values) <= 60 else "",
        markersize=4,
        label=_shortened(analysis.file.label, 70),
    )
    _marks(axis, analysis, colour, None)


def _marks(axis: Axes, analysis: FileAnalysis, colour: str, label: str | None) -> None:
    """Draw the moments of the sidecar that lie in the run; others would stretch the time axis."""
    for mark_ms in analysis.file.marks_ms:
        since_s = (mark_ms - analysis.first_arrival_ms) / 1000.0
        if 0 <= since_s <= _end_s(analysis):
            axis.axvline(since_s, color=colour, linestyle=(0, (4, 3)), linewidth=1.6, label=label)


def _end_s(analysis: FileAnalysis) -> float:
    return analysis.slices[-1].start_s + analysis.slice_s


def _legend(figure: Figure, axis: Axes, analyses: Sequence[FileAnalysis]) -> None:
    handles, labels = axis.get_legend_handles_labels()
    if any(analysis.file.marks_ms for analysis in analyses):
        from matplotlib.lines import Line2D

        handles.append(Line2D([], [], color=_MARK_COLOUR, linestyle=(0, (4, 3)), linewidth=1.6))
        labels.append("scale requested (in the file's colour)")
    columns = _legend_columns(labels)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def _legend_columns(labels: Sequence[str]) -> int:
    """Return as many columns as fit side by side at this font size, at most 5."""
    return max(1, min(5, 105 // (max(len(label) for label in labels) + 8)))


def _legend_height_in(analyses: Sequence[FileAnalysis]) -> float:
    labels = [_shortened(analysis.file.label, 70) for analysis in analyses]
    return 0.25 * math.ceil((len(labels) + 1) / _legend_columns(labels))


def _latency_scale(axes: Sequence[Axes], values: Sequence[float]) -> None:
    """Choose a linear axis from 0, or a logarithmic one where a few outliers would squeeze the rest."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    top = max(values)
    typical = max(median(values), _LOG_FLOOR_MS)
    for axis in axes:
        if top / typical > _LOG_RATIO:
            bottom = max(_LOG_FLOOR_MS, min(values))
            axis.set_yscale("log", nonpositive="clip")
            axis.set_ylim(bottom / 1.5, top * 1.5)
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
            if top / bottom > _FEW_DECADES_RATIO:
                axis.yaxis.set_minor_formatter(NullFormatter())
            else:
                axis.yaxis.set_minor_formatter(FuncFormatter(_minor_label))
        else:
            axis.set_ylim(min(0.0, min(values)) * 1.08, max(top, _LOG_FLOOR_MS) * 1.08)
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def _minor_label(value: float, _position: float) -> str:
    """Label 2 and 5 of each decade where there are few decades."""
    digit = round(value / 10 ** math.floor(math.log10(value)))
    return f"{value:,g}" if digit in (2, 5) else ""


def _with_gaps(analysis: FileAnalysis) -> tuple[list[float], list[Slice | None]]:
    """Return each slice with its middle in seconds; None stands for slices without events."""
    middles: list[float] = []
    pieces: list[Slice | None] = []
    width = analysis.slice_s
    for piece in analysis.slices:
        if middles and piece.start_s - (middles[-1] - width / 2) > width:
            # Both ends of the gap, so that the throughput falls to zero there and the percentiles break off.
            first_s, last_s = middles[-1] + width, piece.start_s - width / 2
            gap = [first_s] if first_s == last_s else [first_s, last_s]
            middles += gap
            pieces += [None] * len(gap)
        middles.append(piece.start_s + width / 2)
        pieces.append(piece)
    return middles, pieces


def _value(piece: Slice | None, name: str) -> float:
    return math.nan if piece is None else float(getattr(piece.statistics, name))


def _slice_text(analyses: Sequence[FileAnalysis]) -> str:
    widths = sorted({analysis.slice_s for analysis in analyses})
    if widths == [1]:
        return "second"
    return f"{widths[0]} s" if len(widths) == 1 else f"{widths[0]} to {widths[-1]} s"


def _shortened(text: str, length: int) -> str:
    return _plain(text if len(text) <= length else text[: length - 1] + "\u2026")


def _plain(text: str) -> str:
    """Keep matplotlib from reading a formula into a label."""
    return text.replace("$", r"\$")
