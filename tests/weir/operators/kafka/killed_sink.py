"""Sinks in processes of their own, which kill themselves: ``python -m tests.weir.operators.kafka.killed_sink``.

Each line of standard input is one process, as JSON: ``[BOOTSTRAP, TOPIC, DIRECTORY, STEPS]``. It is forked, since what
it needs is imported by then. Steps, with commas between them: ``3`` writes a row with this id, ``s2`` takes the
snapshot of checkpoint 2, ``c2`` says that checkpoint 2 is complete and ``w`` waits until the sink has delivered what it
may. Standard output has a line of JSON for each snapshot, and at last the signal that ended the process.
"""

import importlib
import json
import os
import signal
import sys

from tests.weir.operators.kafka.sinks import rows, sink


def die(bootstrap, topic, directory, steps):
    """Be that process."""
    writer = sink(bootstrap, topic, directory, transaction_timeout_ms=600_000)
    for step in steps.split(","):
        if step == "w":
            writer.await_commit()
        elif step.startswith("s"):
            print(json.dumps(writer.snapshot(int(step[1:]))), flush=True)
        elif step.startswith("c"):
            writer.commit(int(step[1:]))
        else:
            writer.process(rows(int(step)))
            writer.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def main():
    """Make one process after the other."""
    # Else each of them would do it.
    importlib.import_module("weir.operators.kafka.sink")
    for line in iter(sys.stdin.readline, ""):
        if not (pid := os.fork()):
            die(*json.loads(line))
        _, status = os.waitpid(pid, 0)
        print(os.WTERMSIG(status), flush=True)


if __name__ == "__main__":
    main()
