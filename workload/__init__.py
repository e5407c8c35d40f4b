"""Spark scripts: workload generation (``workgen.py``) and analysis of latency files (``plot.py``).

The only package that imports pyspark, and it does so inside functions, so that a missing Java or a missing
pyspark is reported in one line before Spark's own stack traces.
"""
