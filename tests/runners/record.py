"""Which jobs a command found equal on a runner, and when: what docs/runners.md may claim."""

import json
from datetime import UTC, datetime
from pathlib import Path

PATH = Path(__file__).with_name("compared.json")
#: By mode, the jobs that each run of the tests compares on Spark: one of each way in which steps run.
TESTED = {
    "batch": [
        *("sliding", "early_changes", "window_all", "null_keys_left", "as_of_left"),
        *("dearest_of_latest", "process_sides", "broadcast", "bad_lines"),
    ],
    "streaming": ["session_pre", "join_then_windows"],
}


def compared():
    """By mode and job, the day on which the job was found equal."""
    return json.loads(PATH.read_text()) if PATH.exists() else {}


def note(mode, name, is_equal):
    """Keep that a job was found equal; one that is not any more is none that was."""
    known = compared()
    found = known.setdefault(mode, {})
    if is_equal:
        found[name] = datetime.now(UTC).date().isoformat()
    else:
        found.pop(name, None)
    ordered = {each: dict(sorted(jobs.items())) for each, jobs in sorted(known.items())}
    PATH.write_text(json.dumps(ordered, indent=1) + "\n")
