from __future__ import annotations

import json
import shlex
import subprocess
import sys

import pyarrow as pa

from weir.operators.sinks.trial_sinks import BlackholeSink, PrintSink
from weir.rows.records import with_system_columns
from weir.specs import BlackholeSpec, PrintSpec


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


def test_a_reader_that_goes_away_ends_the_job_with_one_line():
    code = (
        "import sys, pyarrow as pa; from weir.specs import PrintSpec; from weir.errors import WeirError\n"
        "from weir.operators.sinks.trial_sinks import PrintSink; from weir.rows.records import with_system_columns\n"
        "sink = PrintSink(PrintSpec())\n"
        "try:\n"
        "    for n in range(100_000): sink.process(with_system_columns(pa.record_batch({'id': [n]}), 1, 2))\n"
        "except WeirError as error: print(error.failure_kind.name, error, file=sys.stderr)\n"
    )
    command = shlex.join([sys.executable, "-c", code])
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -1"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == '{"id":0}\n'
    assert done.stderr == "PERMANENT standard output was closed by its reader, such as head; the job ends\n"
