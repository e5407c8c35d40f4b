"""``python -m tests.runners.matrix``: all jobs on Spark beside ``weir.run``, and the tables of docs/runners.md.

Real processes are compared by tests/scenarios/test_equal_jobs.py, with rows that are out of order. The page claims of
Spark what ``--keep`` has noted, and nothing else.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from experiments.spark_forking import DAEMON
from tests.equal.equal_jobs import JOBS
from tests.equal.equal_runs import differences
from tests.runners import record, runs
from tests.runners.exclusions import BATCH, STREAMING, TRIGGERS
from weir.errors import WeirError
from weir.spark.differences import DIFFERENCES
from weir.spark.refusals import REASONS
from weir.spark.session import open_session, started_too_slowly

PAGE = Path(__file__).parents[2] / "docs" / "runners.md"
MODES = ("batch", "streaming")
#: Late rows come in several triggers, to what runs in the tasks of a stream, without Spark.
WITHOUT_SPARK, PARTS = "triggers", 3
#: What the page says of a job that is not excluded.
EQUAL, EQUAL_WITHOUT, NOT_YET = "equal", "equal without Spark", "not noted"
_MADE = "made by python -m tests.runners.matrix --write -->"
MATRIX = (f"<!-- matrix: {_MADE}", "<!-- end of matrix -->")
REFUSALS = (f"<!-- refusals: {_MADE}", "<!-- end of refusals -->")
OTHERWISE = (f"<!-- differences: {_MADE}", "<!-- end of differences -->")


def verdict(directory, name, mode):
    """Why a job is not compared on a runner; None: it can be."""
    if mode == WITHOUT_SPARK:
        return TRIGGERS.get(name)
    return (BATCH if mode == "batch" else STREAMING).get(name) or runs.refusal_of(name, directory, mode)


def compared(spark, directory, name, mode):
    """What a runner says otherwise."""
    try:
        if mode == "batch":
            return differences(runs.on_weir(directory, name), runs.on_spark(spark, directory, name))
        return differences(runs.before_last(directory, name), runs.on_stream(spark, directory, name))
    except WeirError as error:
        return str(error)


def said_of(directory, name, mode, known):
    """What the page says of a job: a reason, or as what it was found; ``known``: as :func:`record.compared` has it."""
    reason = verdict(directory, name, mode)
    if reason is not None:
        return reason
    if name in known.get(mode, {}) or name in record.TESTED[mode]:
        return EQUAL
    return EQUAL_WITHOUT if mode == "streaming" and name in known.get(WITHOUT_SPARK, {}) else NOT_YET


def counts(found, known):
    """How many jobs were compared in which way."""
    told = []
    for place, mode in enumerate(MODES):
        equal = [name for name, verdicts in found.items() if verdicts[place] == EQUAL]
        by_command = len([name for name in equal if name not in record.TESTED[mode]])
        tested = ", ".join(f"`{name}`" for name in record.TESTED[mode])
        told.append(
            f"- Spark {mode}: {len(equal)} of {len(found)} jobs were compared on Spark itself and are equal: "
            f"{by_command} by the command alone, and in each run of the tests {tested}."
        )
    late = len(known.get(WITHOUT_SPARK, {}))
    told.append(f"- Without Spark, with late rows in {PARTS} triggers: {late} jobs are equal.")
    return "\n".join(told)


def table(found):
    """The matrix: a line for each group of jobs of which the same is said."""
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
            if reason in (EQUAL, EQUAL_WITHOUT, NOT_YET):
                cells.append(reason)
                continue
            if reason not in reasons:
                reasons[reason] = len(reasons) + 1
                notes.append(f"{reasons[reason]}. {reason[0].upper()}{reason[1:]}.")
            cells.append(f"no ({reasons[reason]})")
        listed = ", ".join(f"`{name}`" for name in names)
        lines.append(f"| {len(names)}: {listed} | equal | equal | {cells[0]} | {cells[1]} |")
    return "\n".join([*lines, "", "Reasons:", "", *notes])


def as_list(told):
    """Sentences as a list."""
    return "\n".join(f"- {each[0].upper()}{each[1:]}." for each in told.values())


def replaced(text, marks, content):
    """A page with other content between two marks."""
    begin, end = marks
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n\n{content}\n\n{end}{rest.partition(end)[2]}"


def tables_in(text, directory):
    """The page with both tables as they are now."""
    known = record.compared()
    found = {name: tuple(said_of(directory, name, mode, known) for mode in MODES) for name in JOBS}
    content = f"{counts(found, known)}\n\n{table(found)}"
    text = replaced(replaced(text, MATRIX, content), REFUSALS, as_list(REASONS))
    return replaced(text, OTHERWISE, as_list(DIFFERENCES))


def compare_all(place, todo, rows, keeps):
    """Compare jobs on Spark; returns how many are different. ``todo``: by mode, the jobs."""
    directories = {mode: Path(place, mode) for mode in todo}
    for mode, directory in directories.items():
        directory.mkdir()
        runs.write_sorted(directory, rows)
        if mode == "streaming":
            runs.prepare_streams(directory)
    conf = {"spark.sql.shuffle.partitions": "2", **DAEMON}
    with open_session("runners", "local[2]", short_run=True, conf=conf) as spark:
        return tell(
            todo, directories, lambda name, mode: compared(spark, directories[mode], name, mode), keeps
        )


def compare_triggers(place, todo, rows, keeps):
    """Compare jobs without Spark, as its streams run them, with late rows; returns how many are different."""
    directory = Path(place, WITHOUT_SPARK)
    directory.mkdir()
    runs.write_parts(directory, rows, PARTS)

    def different(name, mode):
        expected = runs.in_parts_on_weir(directory, name)
        return differences(expected, runs.in_parts_without_spark(directory, name, PARTS))

    return tell(todo, {WITHOUT_SPARK: directory}, different, keeps)


def tell(todo, directories, different, keeps):
    """Compare jobs, and say what each is found to be; returns how many are different."""
    found, listed = Counter(), [(mode, name) for mode, names in todo.items() for name in names]
    for mode, name in listed:
        began, said = time.monotonic(), "not compared"
        if verdict(directories[mode], name, mode) is None:
            how = different(name, mode)
            said = f"different: {how}" if how else "equal"
            if started_too_slowly(how):
                said = "not compared: Spark's processes began too slowly"
            elif keeps:
                record.note(mode, name, not how)
        found[mode, said.partition(":")[0]] += 1
        print(f"{name} ({mode}, {time.monotonic() - began:.1f} s): {said}", flush=True)
    for (mode, said), count in sorted(found.items()):
        print(f"{mode}: {count} {said}")
    return sum(count for (_, said), count in found.items() if said == "different")


def jobs_to_compare(names, modes, only_missing):
    """By mode, the jobs; ``only_missing``: those that were not found equal yet."""
    known = record.compared()
    return {
        mode: [name for name in names or JOBS if not only_missing or name not in known.get(mode, {})]
        for mode in modes
    }


def main():
    """Compare, or write the tables; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.runners.matrix", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="JOB", help="jobs of the suite (default: all)")
    parser.add_argument("--mode", choices=(*MODES, WITHOUT_SPARK), help="compare so alone")
    parser.add_argument("--rows", type=int, default=60, help="rows of each of the larger sources")
    parser.add_argument("--keep", action="store_true", help="note what is found equal, for docs/runners.md")
    parser.add_argument("--missing", action="store_true", help="leave out what is noted already")
    parser.add_argument(
        "--write", action="store_true", help="write the tables of docs/runners.md, and run nothing"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        if options.write:
            PAGE.write_text(tables_in(PAGE.read_text(), Path(place)))
            return 0
        modes = (options.mode,) if options.mode else MODES
        todo = jobs_to_compare(options.names, modes, options.missing)
        compare = compare_triggers if options.mode == WITHOUT_SPARK else compare_all
        return int(bool(compare(place, todo, options.rows, options.keep)))


if __name__ == "__main__":
    sys.exit(main())
