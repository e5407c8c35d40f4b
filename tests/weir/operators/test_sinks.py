from __future__ import annotations

import json

import pyarrow as pa
import pytest

from weir.errors import InputError
from weir.operators.base import OperatorContext
from weir.operators.sinks import BlackholeSink, JsonLinesSink, PrintSink
from weir.records import with_system_columns
from weir.specs import BlackholeSpec, JsonLinesSinkSpec, PrintSpec


def batch(*ids):
    return with_system_columns(pa.record_batch({"id": pa.array(ids), "s": [f'"{n}" é' for n in ids]}), 1, 2)


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_blackhole_counts():
    sink = BlackholeSink(BlackholeSpec())
    assert list(sink.process(batch(1, 2))) == []
    sink.process(batch(3))
    assert sink.rows == 3


def test_print_shows_user_columns_up_to_the_limit(capsys):
    sink = PrintSink(PrintSpec(rows_max=3))
    for part in (batch(1, 2), batch(3, 4), batch(5)):
        sink.process(part)
    assert lines(capsys.readouterr().out) == [{"id": n, "s": f'"{n}" é'} for n in (1, 2, 3)]


def test_json_lines_part_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "deep" / "out"
    sink = JsonLinesSink(JsonLinesSinkSpec(str(path)))
    sink.open(OperatorContext("j", "s", 1, 2, 3))
    sink.process(batch(1, 2))
    sink.flush()
    assert list(path.glob("part-*")) == []
    assert len(lines(next(path.iterdir()).read_text())) == 2
    sink.process(batch(3))
    sink.finish()
    sink.close()
    assert [entry.name for entry in path.iterdir()] == ["part-2.jsonl"]
    assert lines((path / "part-2.jsonl").read_text()) == [{"id": n, "s": f'"{n}" é'} for n in (1, 2, 3)]


def test_json_lines_never_overwrites(tmp_path):
    (tmp_path / "part-0.jsonl").write_text("mine")
    sink = JsonLinesSink(JsonLinesSinkSpec(str(tmp_path)))
    with pytest.raises(InputError, match="exists already"):
        sink.open(OperatorContext("j", "s", 0, 0, 1))
    assert (tmp_path / "part-0.jsonl").read_text() == "mine"
