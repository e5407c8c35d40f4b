"""Jobs of the suite that are not compared on a runner, each with its reason; docs/runners.md has them as a matrix."""

#: What a batch of Spark, which has its rows in the order of event times, cannot say as others.
LATE = "its step gives rows times that are out of order: which of them are late hangs on the order of reading"
#: By job.
BATCH = {
    "assigned": LATE,
    "assigned_process": LATE,
    "bad_times": LATE,
}
#: A stream of Spark has the rows of each trigger in that order.
STREAMING = BATCH | {
    "global_rows": "what is left in its window over all time is told at the end of the input, which a stream has not"
}
STREAMING |= dict.fromkeys(
    ("union_of_quiet", "join_of_quiet"),
    "its quiet source counts as idle by the clock elsewhere, so that its rows are late; on Spark it never does",
)
#: With late rows, in several triggers.
TRIGGERS = STREAMING | {
    "union": "of its sources the one that is behind counts, where elsewhere each row is late by its own source"
}
