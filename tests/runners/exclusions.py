"""Jobs of the suite that are not compared on a runner, each with its reason; docs/runners.md has them as a matrix."""

#: What a batch of Spark, which has its rows in the order of event times, cannot say as others.
LATE = "its step gives rows times that are out of order: which of them are late hangs on the order of reading"
#: By job.
BATCH = {
    "assigned": LATE,
    "assigned_process": LATE,
    "bad_times": LATE,
}
#: A job that a stream of Spark runs and says otherwise.
FAR = "its times lie beyond those that a TIMESTAMP of Spark has"
STREAMING = dict.fromkeys(("odd_sliding", "odd_session", "odd_join"), FAR) | dict.fromkeys(
    ("assigned", "bad_times"), LATE
)
#: Not compared: nothing closes the windows of these rows in a stream at the same moment.
STREAMING |= dict.fromkeys(
    ("union_of_quiet", "join_of_quiet"),
    "its quiet source has rows past all others, whose windows a stream tells at another end",
)
