"""Repeatable benchmarks on real processes: ``python -m benchmarks --help``. Each one checks what it computes."""
