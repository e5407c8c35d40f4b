"""While many ask for single keys, the thread that answers goes first: all others have a lower priority meanwhile."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")

#: A process of its own, since without a privilege no thread can raise its priority again.
PROGRAM = """
import json, os, sys, threading
from concurrent.futures import ThreadPoolExecutor
from task_manager.priority import AnsweringPriority

steps, moments_s, few = json.loads(sys.argv[1])
niceness = lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
before, over = niceness(), threading.Event()
found = {}

def works(name):
    begun.set()
    over.wait()
    found[name] = niceness() - before
    later = threading.Thread(target=lambda: found.update({name + "'s": niceness() - before}))
    later.start()
    later.join()

begun = threading.Event()
worker = threading.Thread(target=works, args=("worker",))
worker.start()
begun.wait()

def answers():
    priority = AnsweringPriority(steps)
    pool = ThreadPoolExecutor(1, initializer=priority.begin_thread)
    for moment_s in moments_s:
        priority.asked(moment_s)
    found["answering"] = niceness() - before
    found["pooled"] = pool.submit(niceness).result() - before
    pool.shutdown()
    if few is not None:
        for _ in range(few):
            priority.asked(100.0)
        found["is over"] = priority.rested()

answering = threading.Thread(target=answers)
answering.start()
answering.join()
over.set()
worker.join()
print(json.dumps(found))
"""


def may_raise():
    try:
        subprocess.run(
            [sys.executable, "-c", "import os; os.nice(1); os.nice(-1)"], check=True, capture_output=True
        )
    except subprocess.CalledProcessError:
        return False
    return True


def run(steps, moments_s, few=None):
    command = [sys.executable, "-c", PROGRAM, json.dumps([steps, moments_s, few])]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def niceness_after(steps, moments_s):
    """Steps below the start: of the thread that answers, one that it starts, another one, and one that that starts."""
    found = run(steps, moments_s)
    return [found[name] for name in ("answering", "pooled", "worker", "worker's")]


def test_many_questions_within_a_second_lower_all_other_threads():
    assert niceness_after(3, [10.0 + number / 50 for number in range(50)]) == [0, 3, 3, 3]


def test_few_questions_lower_none_and_neither_do_many_without_steps():
    assert niceness_after(3, [10.0 + number / 40 for number in range(400)]) == [0, 0, 0, 0]
    assert niceness_after(0, [10.0] * 1_000) == [0, 0, 0, 0]


MANY = [10.0 + number / 50 for number in range(50)]


def test_threads_stay_low_while_questions_come():
    found = run(3, MANY, few=50)
    assert (found["is over"], found["worker"], found["worker's"]) == (False, 3, 3)


def test_threads_have_their_priority_again_when_few_ask_unless_that_is_forbidden():
    found = run(3, MANY, few=49)
    left = 0 if may_raise() else 3
    assert (found["is over"], found["worker"], found["worker's"]) == (True, left, left)
