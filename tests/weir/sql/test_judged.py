"""Queries of the files beside, in random cuts and with restarts, against DuckDB; all of them: ``benchmarks sql``."""

from pathlib import Path

import pytest

from benchmarks.sql.judge import Record, difference, records_of

_RECORDS = [record for path in sorted(Path(__file__).parent.glob("*.slt")) for record in records_of(path)]


def test_every_query_of_the_files_is_read():
    assert len(_RECORDS) >= 75
    assert len({record.name for record in _RECORDS}) == len(_RECORDS)


@pytest.mark.parametrize("record", _RECORDS[::4], ids=lambda record: record.name)
def test_result_is_that_of_duckdb(record: Record):
    number = _RECORDS.index(record)
    assert difference(record, number, 1 + number % 2, restarts=number % 2 == 1, count=20) == ""


def test_another_result_is_told():
    record = next(each for each in _RECORDS if each.name == "all columns")
    wrong = Record(record.name, record.text, "SELECT * FROM t WHERE id > 0", record.place)
    assert "too many 1" in difference(wrong, 1, 1, restarts=False, count=5)
