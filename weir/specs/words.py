"""Words in which plans show durations and watermarks."""

from __future__ import annotations

from weir.author.watermarks import DEFAULT_STRATEGY, WatermarkStrategy

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))


def duration_words(milliseconds: int) -> str:
    """Return a duration such as ``90s``, ``1h`` or ``250ms``."""
    for unit, size in _UNITS:
        if milliseconds and milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


def same_window_words(window_ms: int, slide_ms: int | None) -> str:
    """Return what pairs rows that are in one window."""
    by = "" if slide_ms is None else f" by {duration_words(slide_ms)}"
    return f"the same window of {duration_words(window_ms)}{by}"


def watermark_words(time: str, strategy: WatermarkStrategy | None) -> str:
    """Return what event times are made of, and how the watermark follows them; None: as config.json says."""
    strategy = strategy or DEFAULT_STRATEGY
    if strategy.generator is not None:
        text = f"{time}, watermark of {getattr(strategy.generator, '__name__', 'a generator')}"
    elif strategy.out_of_orderness_ms is None:
        text = f"{time}, watermark at out_of_order_grace_period"
    else:
        text = f"{time}, watermark {duration_words(strategy.out_of_orderness_ms)} behind"
    if strategy.idle_timeout_ms is not None:
        text += f", idle after {duration_words(strategy.idle_timeout_ms)}"
    if strategy.alignment is not None:
        drift, group = duration_words(strategy.alignment.max_drift_ms), strategy.alignment.group
        text += f", at most {drift} ahead of group {group}"
    return text
