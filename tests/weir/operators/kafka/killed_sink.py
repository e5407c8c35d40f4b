"""A subtask's sink in a process of its own, which kills itself: ``python -m ... BOOTSTRAP TOPIC DIRECTORY STEPS``.

Steps, with commas between them: ``3`` writes a row with this id, ``s2`` takes the snapshot of checkpoint 2, ``c2`` says
that checkpoint 2 is complete and ``w`` waits until the sink has delivered what it may. Standard output has a line of
JSON for each snapshot.
"""

import json
import os
import signal
import sys

from tests.weir.operators.kafka.sinks import rows, sink


def main(bootstrap, topic, directory, steps):
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


if __name__ == "__main__":
    main(*sys.argv[1:])
