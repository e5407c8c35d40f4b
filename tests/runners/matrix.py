"""``python -m tests.runners.matrix``: all jobs on all runners, and the table of docs/runners.md.

--write puts the table into the page; without it the command says only what is different. Real processes are compared by
tests/scenarios/test_equal_jobs.py, with rows that are out of order.
"""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.equal.equal_jobs import JOBS
from tests.equal.equal_runs import differences
from tests.runners import runs
from tests.runners.exclusions import BATCH, STREAMING
from weir.errors import WeirError
from weir.spark.refusals import REASONS
from weir.spark.session import open_session

PAGE = Path(__file__).parents[2] / "docs" / "runners.md"
_MADE = "made by python -m tests.runners.matrix --write -->"
MATRIX = (f"<!-- matrix: {_MADE}", "<!-- end of matrix -->")
REFUSALS = (f"<!-- refusals: {_MADE}", "<!-- end of refusals -->")


def compared(spark, directory, name, mode):
    """What a runner says otherwise; the reason why it is not compared comes first."""
    reason = (BATCH if mode == "batch" else STREAMING).get(name) or runs.refusal_of(name, directory, mode)
    if reason is not None:
        return reason, {}
    if mode == "batch":
        return None, differences(runs.on_weir(directory, name), runs.on_spark(spark, directory, name))
    expected = runs.before_last(runs.on_weir(directory, name, sides=False))
    return None, differences(expected, runs.on_stream(spark, directory, name))


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


def main():
    """Compare; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.runners.matrix", description=__doc__)
    parser.add_argument("--rows", type=int, default=100, help="rows of each of the larger sources")
    parser.add_argument("--write", action="store_true", help="put the table into docs/runners.md")
    options = parser.parse_args()
    found, wrong = {}, Counter()
    with (
        tempfile.TemporaryDirectory() as place,
        open_session(
            "runners", "local[2]", short_run=True, conf={"spark.sql.shuffle.partitions": "2"}
        ) as spark,
    ):
        directories = {mode: Path(place, mode) for mode in ("batch", "streaming")}
        for mode, directory in directories.items():
            directory.mkdir()
            runs.write_sorted(directory, options.rows)
            if mode == "streaming":
                runs.prepare_streams(directory)
        for name in JOBS:
            verdicts = []
            for mode, directory in directories.items():
                try:
                    reason, different = compared(spark, directory, name, mode)
                except WeirError as error:
                    reason, different = None, str(error)
                verdicts.append(reason)
                if different:
                    wrong[mode] += 1
                    print(f"{name} on Spark ({mode}) is different: {different}", flush=True)
            found[name] = tuple(verdicts)
            print(name, *("equal" if reason is None else "not compared" for reason in verdicts), flush=True)
    for place, mode in enumerate(directories):
        skipped = sum(verdicts[place] is not None for verdicts in found.values())
        print(
            f"{mode}: {len(found) - skipped - wrong[mode]} of {len(found)} jobs equal, {skipped} not compared"
        )
    if options.write and not wrong:
        PAGE.write_text(replaced(replaced(PAGE.read_text(), MATRIX, table(found)), REFUSALS, refusals()))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
