"""Jobs of Weir on Spark: ``weir run JOB --runner spark``. What is translated is pure; Spark itself is at the edge.

``translation`` says of each step how it runs, or why it cannot; ``frames`` makes data frames of that, and ``tasks`` is
what runs within Spark's tasks where Spark has no equal of its own. See docs/runners.md.
"""
