"""``python -m tests.runners.matrix``: all jobs on Spark beside ``weir.run``, and the tables of docs/runners.md.

Real processes are compared by tests/scenarios/test_equal_jobs.py, with rows that are out of order.
"""

import argparse
import itertools
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.equal.equal_jobs import JOBS
from tests.equal.equal_runs import differences
from tests.runners import runs
from tests.runners.exclusions import BATCH, STREAMING, TRIGGERS
from weir.errors import WeirError
from weir.spark.refusals import REASONS
from weir.spark.session import open_session

PAGE = Path(__file__).parents[2] / "docs" / "runners.md"
MODES = ("batch", "streaming")
#: Late rows come in several triggers, to what runs in the tasks of a stream, without Spark.
WITHOUT_SPARK, PARTS = "triggers", 3
_MADE = "made by python -m tests.runners.matrix --write -->"
MATRIX = (f"<!-- matrix: {_MADE}", "<!-- end of matrix -->")
REFUSALS = (f"<!-- refusals: {_MADE}", "<!-- end of refusals -->")


def verdict(directory, name, mode):
    """Why a job is not compared on a runner; None: it is."""
    return (BATCH if mode == "batch" else STREAMING).get(name) or runs.refusal_of(name, directory, mode)


def compared(spark, directory, name, mode):
    """What a runner says otherwise."""
    try:
        if mode == "batch":
            return differences(runs.on_weir(directory, name), runs.on_spark(spark, directory, name))
        return differences(runs.before_last(directory, name), runs.on_stream(spark, directory, name))
    except WeirError as error:
        return str(error)


def table(found):
    """The matrix: a line for each group of jobs with the same verdicts."""
    lines = [
        "| Jobs | `weir.run` | processes | Spark batch | Spark streaming |",
        "| --- | --- | --- | --- | --- |",
    ]
    groups = {}
    for name, verdicts in found.items():
        groups.setdefault(verdicts, []).append(name)
    reasons, notes = {}, []
    for verdicts, names in sorted(groups.items(), key=lambda item: -len(item[1])):
        cells = []
        for reason in verdicts:
            if reason is not None and reason not in reasons:
                reasons[reason] = len(reasons) + 1
                notes.append(f"{reasons[reason]}. {reason[0].upper()}{reason[1:]}.")
            cells.append("equal" if reason is None else f"no ({reasons[reason]})")
        listed = ", ".join(f"`{name}`" for name in names)
        lines.append(f"| {len(names)}: {listed} | equal | equal | {cells[0]} | {cells[1]} |")
    return "\n".join([*lines, "", "Reasons:", "", *notes])


def refusals():
    """All reasons for which a step may be refused, and where."""
    return "\n".join(f"- {reason[0].upper()}{reason[1:]}." for reason in REASONS.values())


def replaced(text, marks, content):
    """A page with other content between two marks."""
    begin, end = marks
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n\n{content}\n\n{end}{rest.partition(end)[2]}"


def tables_in(text, directory):
    """The page with both tables as they are now."""
    found = {name: tuple(verdict(directory, name, mode) for mode in MODES) for name in JOBS}
    return replaced(replaced(text, MATRIX, table(found)), REFUSALS, refusals())


def compare_all(place, names, rows, modes=MODES):
    """Compare jobs on Spark; returns how many are different."""
    directories, counts = {mode: Path(place, mode) for mode in modes}, Counter()
    for mode, directory in directories.items():
        directory.mkdir()
        runs.write_sorted(directory, rows)
        if mode == "streaming":
            runs.prepare_streams(directory)
    with open_session(
        "runners", "local[2]", short_run=True, conf={"spark.sql.shuffle.partitions": "2"}
    ) as spark:
        for name, mode in itertools.product(names, modes):
            said = "not compared"
            if verdict(directories[mode], name, mode) is None:
                different = compared(spark, directories[mode], name, mode)
                said = f"different: {different}" if different else "equal"
            counts[mode, said.partition(":")[0]] += 1
            print(f"{name} ({mode}): {said}", flush=True)
    for (mode, said), count in sorted(counts.items()):
        print(f"{mode}: {count} {said}")
    return sum(count for (_, said), count in counts.items() if said == "different")


def compare_triggers(place, names, rows):
    """Compare jobs without Spark, as its streams run them, with late rows; returns how many are different."""
    directory, counts = Path(place, WITHOUT_SPARK), Counter()
    directory.mkdir()
    runs.write_parts(directory, rows, PARTS)
    for name in names:
        said = "not compared"
        if name not in TRIGGERS:
            expected = runs.in_parts_on_weir(directory, name)
            different = differences(expected, runs.in_parts_without_spark(directory, name, PARTS))
            said = f"different: {different}" if different else "equal"
        counts[said.partition(":")[0]] += 1
        print(f"{name} ({WITHOUT_SPARK}): {said}", flush=True)
    for said, count in sorted(counts.items()):
        print(f"{WITHOUT_SPARK}: {count} {said}")
    return counts["different"]


def main():
    """Compare, or write the tables; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.runners.matrix", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="JOB", help="jobs of the suite (default: all)")
    parser.add_argument("--mode", choices=(*MODES, WITHOUT_SPARK), help="compare so alone")
    parser.add_argument("--rows", type=int, default=60, help="rows of each of the larger sources")
    parser.add_argument(
        "--write", action="store_true", help="write the tables of docs/runners.md, and run nothing"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        if options.write:
            PAGE.write_text(tables_in(PAGE.read_text(), Path(place)))
            return 0
        names = options.names or list(JOBS)
        if options.mode == WITHOUT_SPARK:
            return int(bool(compare_triggers(place, names, options.rows)))
        modes = (options.mode,) if options.mode else MODES
        return int(bool(compare_all(place, names, options.rows, modes)))


if __name__ == "__main__":
    sys.exit(main())
