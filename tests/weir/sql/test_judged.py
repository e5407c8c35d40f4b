"""Queries of the files beside, in random cuts and with restarts, against DuckDB; all of them: ``benchmarks sql``."""

from pathlib import Path

import pytest

from benchmarks.sql.judge import Record, difference, records_of
from benchmarks.sql.judging import differing

_FOLDER = Path(__file__).parent
_FILES = {path.name: list(records_of(path)) for path in sorted(_FOLDER.glob("*.slt"))}
_RECORDS = [record for records in _FILES.values() for record in records]
#: Of each file every so many: a run of all takes minutes.
_EVERY = {"made_up.slt": 100, "over.slt": 8, "groups.slt": 9}
_TRIED = [record for name, records in _FILES.items() for record in records[:: _EVERY.get(name, 6)]]


def test_every_query_of_the_files_is_read():
    assert len(_RECORDS) >= 500
    assert len({record.name for record in _RECORDS}) == len(_RECORDS)


@pytest.mark.parametrize("record", _TRIED, ids=lambda record: record.name)
def test_result_is_that_of_duckdb(record: Record):
    number = _RECORDS.index(record)
    assert difference(record, number, 1 + number % 2, restarts=number % 2 == 1, count=20) == ""


def test_another_result_is_told():
    record = next(each for each in _RECORDS if each.name == "all columns")
    wrong = Record(record.name, record.text, "SELECT * FROM t WHERE id > 0", record.place)
    assert "too many 1" in difference(wrong, 1, 1, restarts=False, count=5)


def test_query_that_fails_is_a_finding_and_the_next_ones_are_judged():
    good = next(each for each in _RECORDS if each.name == "all columns")
    # DuckDB raises what is no error of Weir.
    bad = Record("unreadable", good.text, "SELECT FROM FROM", "here:1")
    told = []
    found = differing([(0, bad), (1, good)], 1, lambda line, _: told.append(line), processes=1)
    assert found == 1
    assert [line for line in told if line.startswith("DIFFERS here:1 unreadable: ")]
