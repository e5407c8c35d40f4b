"""``workflows run``: what the command takes, checked, and the series."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from experiments.workflows.driver import PAYLOADS, Launch
from experiments.workflows.job import LOGS
from experiments.workflows.metrics import to_json
from experiments.workflows.server import store_settings
from experiments.workflows.trial import Say
from weir.errors import ConfigError

_SIZE = re.compile(r"(\d+)([KMG]?)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def run_bars_command(
    store: str,
    log: str,
    shape: str,
    payload: str,
    repeat: int,
    timers: int,
    peer: bool,
    grown: str,
    bounded: tuple[str, str],
    hot_rows: int,
    relink: str,
    only: str,
    home: tuple[float | None, int, bool],
    json_path: Path | None,
    say: Say,
) -> int:
    """Measure the bars, or some of their parts; returns the exit code, 1 if something is wrong in the end.

    ``bounded``: sizes of the state and of the memory of the figure with bounded memory. ``home``: ``s3_delay_ms``,
    ``standby_replicas`` and ``compare`` of ``BarOptions``.

    Raises:
        ConfigError: an option is wrong.
        WeirError: a process ended.
    """
    from experiments.workflows.bars import PARTS, BarOptions, run_bars

    _check(store, log, payload)
    try:
        workflows, payload_bytes, tasks = map(int, shape.split(","))
    except ValueError:
        raise ConfigError(f"--shape {shape}: give three numbers, such as 1000,2000,100") from None
    launch = Launch(workflows, payload_bytes, tasks, drivers=2, payload=payload)
    options = BarOptions(
        store,
        log,
        launch,
        repeat,
        timers=timers,
        grown_bytes=size_bytes(grown, "--grown"),
        bounded_bytes=size_bytes(bounded[0], "--bounded-state"),
        memory_bytes=size_bytes(bounded[1], "--bounded-memory"),
        hot_rows=hot_rows,
        relink_bytes=size_bytes(relink, "--relink"),
        peer=peer,
        s3_delay_ms=home[0],
        standby_replicas=home[1],
        compare=home[2],
        only=tuple(filter(None, only.split(","))),
    )
    if wrong := [part for part in options.only if part not in PARTS]:
        raise ConfigError(f"--only {wrong[0]}: there are {', '.join(PARTS)}")
    figures = run_bars(options, say)
    text = to_json(figures)
    print(text)
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(text + "\n")
    return 1 if figures["wrong"] else 0


def run_series_command(
    series: str,
    store: str,
    log: str,
    repeat: int,
    sizes: str,
    payload: str,
    out: Path,
    settings: Sequence[str],
    say: Say,
) -> int:
    """Measure while the store grows, or variants of a setting; returns the exit code.

    Raises:
        ConfigError: an option is wrong.
        WeirError: a process ended, or Spark failed.
    """
    from experiments.workflows.growth import run_growth
    from experiments.workflows.variants import SERIES, run_variants

    if series != "growth" and series not in SERIES:
        raise ConfigError(f"there is no series {series!r}; there are bars, growth, {', '.join(SERIES)}")
    _check(store, log, payload)
    if wrong := [each for each in settings if "=" not in each]:
        raise ConfigError(
            f"--set {wrong[0]}: write KEY=VALUE, such as taskManager.rocksdb.compaction=universal"
        )
    given = dict(each.split("=", 1) for each in settings)
    if series == "growth":
        listed = [size_bytes(text) for text in sizes.split(",")]
        paths = run_growth(out, listed, store, log, payload, say, given)
    else:
        paths = run_variants(out, series, repeat, store, log, payload, say, given)
    for path in paths:
        print(path)
    return 0


def size_bytes(text: str, option: str = "--sizes") -> int:
    """Bytes of a size such as 256M.

    Raises:
        ConfigError: it is none.
    """
    found = _SIZE.fullmatch(text.strip().upper())
    if found is None:
        raise ConfigError(f"{option}: {text!r} is no size; write 0, 256M or 4G (--sizes: in ascending order)")
    return int(found[1]) * _UNITS[found[2]]


def _check(store: str, log: str, payload: str) -> None:
    store_settings(store)
    if log not in LOGS:
        raise ConfigError(f"--log {log}: there are {', '.join(LOGS)}")
    if payload not in PAYLOADS:
        raise ConfigError(f"--payload {payload}: there are {', '.join(PAYLOADS)}")
