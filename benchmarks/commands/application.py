"""The command line that all benchmarks are commands of."""

from __future__ import annotations

import signal

import typer

_EPILOG = """
Examples:

\b
python -m benchmarks throughput --json data/benchmarks/results/throughput.json
python -m benchmarks throughput --one-core --repeat 5
python -m benchmarks throughput --events 30000000
python -m benchmarks throughput --input wikipedia
python -m benchmarks throughput --input parquet
python -m benchmarks latency --rate 100
python -m benchmarks sinks --sink parquet
python -m benchmarks latency --rate 0
python -m benchmarks wal --only "send_many, words" --only failover
python -m benchmarks wal --csv data/wal.csv --pictures plots/wal
python -m benchmarks wal --only recovery --no-kafka
python -m benchmarks wide_job --rate 200
python -m benchmarks wide_rows
python -m benchmarks face --turns 2
python -m benchmarks watermark_lag
python -m benchmarks state --keys 10000000
python -m benchmarks functions
python -m benchmarks nexmark --query q1 --query q22
python -m benchmarks runners
python -m benchmarks peers --only q5 --system flink --system weir
python -m benchmarks rescale --state-bytes 1e9 --rate 50000 --strategy migrate
python -m benchmarks rescale --steady
python -m benchmarks joins --only recovery
python -m benchmarks checkpoint --state-bytes 1e9 --rate 50000
python -m benchmarks recovery --state-bytes 1e9 --rate 50000
python -m benchmarks report

nexmark needs Java, to compare, and runners for Spark; kafka, wal, cassandra and peers need Java and Maven. Inputs have
the lines that workgen.py makes, and are kept in data/benchmarks.
"""

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, epilog=_EPILOG)


@app.callback()
def _describe() -> None:
    """Benchmarks on real processes. Each one checks what it computes and fails (exit code 1) if it is wrong.

    Exit code 4: the machine does not keep up with the load, so that nothing can be said of the engine.
    """
    # The processes of a benchmark end on Ctrl-C; they shall also when this is killed, or its terminal goes away.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
