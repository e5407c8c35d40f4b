"""The page of the log's figures says of each conclusion whether they confirm it."""

from __future__ import annotations

import pytest

from benchmarks.wal.cases import CASES, Case
from benchmarks.wal.conclusions import CONCLUSIONS, log_section


def document(speeds, systems=("weir", "kafka"), left_out=()):
    """A result in which each case is as fast as it is given, or 100 MiB/s."""
    cases = [
        {
            **{"system": system, "case": case.name, "p50_ms": 1.0, "p99_ms": 2.5},
            "acknowledged_mb_per_second": speeds.get(case.name, 100.0),
        }
        for system in systems
        for case in CASES
        if case.name not in left_out
    ]
    return {
        **{"name": "wal", "command": "python -m benchmarks wal", "measured": "2026-01-02T03:04:05Z"},
        **{"config": {"seconds": 5.0}, "repeats": [{}, {}, {}], "cases": cases},
        "bars": [
            {"metric": "failover_ms", "comparison": "at most", "bound": 1000.0, "value": 129.4, "met": True},
            {"metric": "reader_share", "comparison": "at least", "bound": 0.8, "value": 0.5, "met": False},
        ],
        **{"lost": 0, "duplicated": 0, "reordered": 0, "failover_acknowledged": 1_234_567},
    }


#: Speeds as the predecessor saw them.
AS_BEFORE = {
    Case("sync", "random").name: 0.6,
    Case("sync", "random", "1").name: 1.6,
    Case("sync", "random", "0").name: 4.0,
    Case("send", "words").name: 400.0,
    Case("send", "words", "1").name: 380.0,
    Case("send", "words", "0").name: 410.0,
    Case("send", "json").name: 220.0,
    **{
        Case("sync", "random", acks, on_disk=True).name: speed
        for acks, speed in (("all", 0.55), ("1", 1.5), ("0", 3.8))
    },
}


def verdicts(result):
    rows = [line.split(" | ") for line in log_section([{"name": "other"}, result]).splitlines()]
    return {
        row[0].removeprefix("| "): row[1:] for row in rows if len(row) == 3 and "predecessor" not in row[0]
    }


def test_figures_as_the_predecessor_had_them_confirm_it():
    found = verdicts(document(AS_BEFORE))
    assert len(found) >= len(CONCLUSIONS)
    for conclusion in CONCLUSIONS:
        weir, kafka = found[conclusion.sentence]
        assert weir.startswith("**confirmed**: ")
        assert kafka.startswith("**confirmed**: ")
    assert found["one at a time, acks decide the speed"][0] == (
        "**confirmed**: acks=0 6.7 times, acks=1 2.7 times acks=all"
    )


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            {
                Case("sync", "random", acks, on_disk=is_on_disk).name: 0.6
                for acks in ("0", "1")
                for is_on_disk in (False, True)
            },
            "acks decide",
        ),
        ({Case("send", "random", "0").name: 200.0}, "no clear difference"),
        ({Case("send", "words", codec="none").name: 300.0}, "at least double"),
        ({Case("send", "json").name: 130.0}, "not one repeated word"),
        ({Case("send", "random", "1", retention="5s").name: 50.0}, "retention"),
        ({Case("send", "random", on_disk=True).name: 30.0}, "memory disk"),
    ],
)
def test_other_figures_refute_one_conclusion_each(changed, sentence):
    found = verdicts(document({**AS_BEFORE, **changed}))
    refuted = [name for name, cells in found.items() if cells[0].startswith("**refuted**")]
    assert len(refuted) == 1
    assert sentence in refuted[0]


def test_what_was_not_measured_is_not_judged():
    result = document(AS_BEFORE, systems=("weir",), left_out={Case("send", "json").name})
    found = verdicts(result)
    assert found["the same of data that is not one repeated word"] == ["not measured", "not measured |"]
    assert found["retention does not matter"][1] == "not measured |"
    text = log_section([result])
    assert "| `failover_ms` at most 1000 | 129.4 | met |" in text
    assert "| `reader_share` at least 0.8 | 0.5 | MISSED |" in text
    assert "| of 1,234,567 records over killed leaders | 0 lost, 0 duplicated, 0 reordered | |" in text
    assert "| send, words, acks=all | 400.0 | - | 1.00 / 2.50 | - |" in text
    assert "No result stands here yet" in log_section([{"name": "other"}])
    more = log_section([{**result, "kafka_failover_ms": 3456.0, "failed": {"reader": "it has read nothing"}}])
    assert "| of Kafka, for comparison: `kafka_failover_ms` | 3456 | |" in more
    assert "| reader | failed: it has read nothing | |" in more
