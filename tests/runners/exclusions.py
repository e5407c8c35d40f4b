"""Jobs of the suite that are not compared on a runner, each with its reason; docs/runners.md has them as a matrix."""

from weir.spark.differences import DIFFERENCES

#: What ``weir plan --runner spark`` says of them; by job.
BATCH = dict.fromkeys(("assigned", "assigned_process", "bad_times"), DIFFERENCES["order"])
#: A stream of Spark has the rows of each trigger in the order of event times, too.
STREAMING = BATCH | {"global_rows": DIFFERENCES["untold"]}
STREAMING |= dict.fromkeys(("union_of_quiet", "join_of_quiet"), DIFFERENCES["idle"])
#: With late rows, in several triggers.
TRIGGERS = STREAMING | {
    "union": "of its sources the one that is behind counts, where elsewhere each row is late by its own source"
}
