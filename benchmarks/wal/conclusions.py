"""What the predecessor concluded of its charts, and whether the figures of a result confirm or refute it.

The conclusions and its figures are in ``shared/spec/write_ahead_log.md``, section C.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.wal.cases import Acks, Case, Data, Mode

_RESULT = "wal"
_SYSTEMS = ("weir", "kafka")
#: Two speeds differ, and are no noise, from this ratio on.
_DIFFERS = 1.25
_NOTHING = (
    "No result stands here yet: it needs a quiet machine, and is made by\n"
    "`python -m benchmarks wal --json benchmarks/results/wal.json` and `python -m benchmarks report`.\n"
)
_Speed = Callable[[Case], float]


@dataclass(frozen=True)
class _Conclusion:
    """A sentence of the predecessor, and what of our figures decides on it."""

    sentence: str
    #: From the speeds of one system: what is shown, and whether it holds.
    judge: Callable[[_Speed], tuple[str, bool]]


def _acks_decide_in_sync_mode(speed: _Speed) -> tuple[str, bool]:
    none, leader, everybody = (speed(Case("sync", "random", acks)) for acks in _ACKS)
    shown = f"acks=0 {none / everybody:.1f} times, acks=1 {leader / everybody:.1f} times acks=all"
    return shown, none / everybody >= _DIFFERS


def _acks_do_not_matter_in_async_mode(speed: _Speed) -> tuple[str, bool]:
    ratios = [
        speed(Case("send", data, acks)) / speed(Case("send", data)) for data in _BARRED for acks in _ACKS
    ]
    return f"{min(ratios):.2f} to {max(ratios):.2f} times acks=all", _are_alike(ratios)


def _batches_with_compression_double(speed: _Speed) -> tuple[str, bool]:
    both = speed(Case("send", "words"))
    alone = max(
        speed(Case("send", "words", codec="none")),
        speed(Case("send", "words", codec="lz4", single=True)),
        speed(Case("send", "words", codec="none", single=True)),
    )
    return f"both together {both / alone:.1f} times the better of each alone", both / alone >= 2


def _compression_of_real_data(speed: _Speed) -> tuple[str, bool]:
    ratio = speed(Case("send", "json")) / speed(Case("send", "json", codec="none"))
    return f"JSON with lz4 {ratio:.2f} times JSON without", ratio >= 2


def _retention_does_not_matter(speed: _Speed) -> tuple[str, bool]:
    shown, holds = [], True
    for mode in _BOTH_MODES:
        some = [speed(Case(mode, "random", "1", retention=each)) for each in ("7d", "1m", "5s")]
        ratios = [each / some[0] for each in some[1:]]
        shown.append(f"{mode}: {', '.join(f'{each:.2f}' for each in ratios)}")
        holds = holds and _are_alike(ratios)
    return f"1 minute and 5 s beside 7 days, {'; '.join(shown)}", holds


def _disk_does_not_matter(speed: _Speed) -> tuple[str, bool]:
    sync = [
        speed(Case("sync", "random", acks, on_disk=True)) / speed(Case("sync", "random", acks))
        for acks in _ACKS
    ]
    flat_out = speed(Case("send", "random", on_disk=True)) / speed(Case("send", "random"))
    shown = f"disk beside memory: sync {min(sync):.2f} to {max(sync):.2f}, async {flat_out:.2f}"
    return shown, _are_alike([*sync, flat_out])


def _are_alike(ratios: Sequence[float]) -> bool:
    return all(1 / _DIFFERS < each < _DIFFERS for each in ratios)


_ACKS: tuple[Acks, ...] = ("0", "1", "all")
_BARRED: tuple[Data, ...] = ("random", "words")
_BOTH_MODES: tuple[Mode, ...] = ("sync", "send")
CONCLUSIONS = (
    _Conclusion("one at a time, acks decide the speed", _acks_decide_in_sync_mode),
    _Conclusion("flat out, acks make no clear difference", _acks_do_not_matter_in_async_mode),
    _Conclusion(
        "flat out, batches together with compression at least double the speed (one repeated word)",
        _batches_with_compression_double,
    ),
    _Conclusion("the same of data that is not one repeated word", _compression_of_real_data),
    _Conclusion("retention does not matter", _retention_does_not_matter),
    _Conclusion("a memory disk gains nothing, unless the disk is the limit", _disk_does_not_matter),
)


def log_section(documents: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables of docs/log-beside-kafka.md, of the result ``wal`` that has cases; a recovery has none."""
    found = [document for document in documents if document["name"] == _RESULT and document["cases"]]
    if not found:
        return _NOTHING
    (document,) = found
    return f"{_where(document)}\n{_verdicts(document)}\n{_bars(document)}\n{_speeds(document)}"


def _where(document: Mapping[str, Any]) -> str:
    config = document["config"]
    return (
        f"Medians of {len(document['repeats'])} runs of {config['seconds']:g} s a case, `{document['command']}`, "
        f"{document['measured'][:10]}.\n"
    )


def _verdicts(document: Mapping[str, Any]) -> str:
    rows = ["| the predecessor's conclusion | Weir | Kafka |", "| --- | --- | --- |"]
    for conclusion in CONCLUSIONS:
        cells = [_verdict(document, conclusion, system) for system in _SYSTEMS]
        rows.append(f"| {conclusion.sentence} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _verdict(document: Mapping[str, Any], conclusion: _Conclusion, system: str) -> str:
    speeds = {
        case["case"]: case["acknowledged_mb_per_second"]
        for case in document["cases"]
        if case["system"] == system
    }
    try:
        shown, holds = conclusion.judge(lambda case: float(speeds[case.name]))
    except KeyError:
        return "not measured"
    return f"**{'confirmed' if holds else 'refuted'}**: {shown}"


def _bars(document: Mapping[str, Any]) -> str:
    rows = ["| bar | seen | |", "| --- | ---: | --- |"]
    for line in document["bars"]:
        verdict = "met" if line["met"] else "MISSED"
        rows.append(
            f"| `{line['metric']}` {line['comparison']} {line['bound']:g} | {line['value']:g} | {verdict} |"
        )
    wrong = [f"{document[name]:g} {name}" for name in ("lost", "duplicated", "reordered") if name in document]
    if wrong:
        rows.append(
            f"| of {document['failover_acknowledged']:,} records over killed leaders | {', '.join(wrong)} | |"
        )
    if "kafka_failover_ms" in document:
        rows.append(
            f"| of Kafka, for comparison: `kafka_failover_ms` | {document['kafka_failover_ms']:g} | |"
        )
    for name, why in document.get("failed", {}).items():
        rows.append(f"| {name} | failed: {why} | |")
    return "\n".join(rows) + "\n"


def _speeds(document: Mapping[str, Any]) -> str:
    rows = [
        "| case | Weir MiB/s | Kafka MiB/s | Weir p50 / p99 ms | Kafka p50 / p99 ms |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    cases: dict[str, dict[str, Mapping[str, Any]]] = {}
    for case in document["cases"]:
        cases.setdefault(case["case"], {})[case["system"]] = case
    for name, systems in cases.items():
        speeds = [
            f"{systems[each]['acknowledged_mb_per_second']:,.1f}" if each in systems else "-"
            for each in _SYSTEMS
        ]
        times = [
            f"{systems[each]['p50_ms']:,.2f} / {systems[each]['p99_ms']:,.2f}" if each in systems else "-"
            for each in _SYSTEMS
        ]
        rows.append(f"| {name} | {' | '.join([*speeds, *times])} |")
    return "\n".join(rows) + "\n"
