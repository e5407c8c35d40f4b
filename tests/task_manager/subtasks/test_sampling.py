"""Real threads that are looked at; the clock is the test's."""

import subprocess
import sys
import threading
from collections import Counter

import pyarrow as pa
import pytest

from task_manager.services.profile_wire import profile_to_proto
from task_manager.subtasks.sampling import (
    _STACKS_MAX,
    SampledThread,
    Samples,
    frames_of_threads,
    kind_of,
    look,
    sample,
)
from weir import threads
from weir.author.operator import Operator, OperatorContext
from weir.operators.chain import OperatorChain
from weir.protocol.job.profile import FrameKind, telling_frame, words
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables
from weir.testing import ManualClock

BATCH = pa.RecordBatch.from_pydict({"id": [1, 2, 3]})

#: Looks where a garbage collection is due, which lets another thread run that begins threads.
_LOOKS_WHILE_GARBAGE_IS_COLLECTED = """
import gc, os, threading, time
from task_manager.subtasks.sampling import frames_of_threads

class Garbage:
    def __init__(self):
        self.itself = self
    def __del__(self):
        time.sleep(0.001)

def begin_threads():
    while True:
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()

threading.Thread(target=begin_threads, daemon=True).start()
gc.set_threshold(1)
for _ in range(300):
    gc.disable()
    Garbage()
    gc.enable()
    frames_of_threads()
assert gc.isenabled()
print("looked", flush=True)
os._exit(0)
"""


class Passes(Operator):
    def process(self, batch):
        yield batch


class Stays(Operator):
    """Tells that it runs, and stays there until it may go on."""

    def __init__(self):
        self.runs, self.may_end = threading.Event(), threading.Event()

    def process(self, batch):
        yield self.score(batch)

    def score(self, batch):
        self.runs.set()
        while not self.may_end.is_set():
            pass
        return batch


class Output:
    def emit(self, batch):
        pass


@pytest.fixture
def staying():
    """A thread in the second step of a chain."""
    stays = Stays()
    operators = [
        (each, OperatorContext("job", name, 0, 0, 1))
        for name, each in (("first", Passes()), ("second", stays), ("third", Passes()))
    ]
    chain = OperatorChain(operators, Output(), lambda: None, StateTables(MemoryBackend(), 1 << 20, 128))
    thread = threading.Thread(target=chain.process, args=(BATCH,), daemon=True)
    thread.start()
    assert stays.runs.wait(60)
    yield thread
    stays.may_end.set()
    thread.join()


def sampled(find, looks):
    """So many looks in virtual time."""
    clock, left = ManualClock(), [looks]

    def sleep(seconds):
        clock.advance_ms(seconds * 1e3)
        left[0] -= 1

    return sample(find, 3_600.0, clock, lambda: left[0] > 0, sleep)


def test_a_function_is_named_with_its_step_and_line(staying):
    samples = sampled(lambda: [SampledThread(staying.ident)], 50)
    assert samples.subtasks == 1
    stacks = samples.stacks()
    assert sum(stack.samples for stack in stacks) == 50
    assert {stack.step for stack in stacks} == {"second"}
    assert not any(stack.waits for stack in stacks)
    told = telling_frame(stacks[0].frames)
    assert (told.function, told.file, told.kind) == (
        "Stays.score",
        "subtasks/test_sampling.py",
        FrameKind.JOB,
    )
    assert "`Stays.score` of step `second`" in words(stacks)[0]
    kinds = [frame.kind for frame in stacks[0].frames]
    assert FrameKind.ENGINE in kinds
    assert kinds.index(FrameKind.ENGINE) < kinds.index(FrameKind.JOB)


def test_a_thread_that_waits_does_so_and_a_source_that_reads_has_its_step():
    event = threads.event()
    thread = threads.start(event.wait, "waits")
    while not any(stack.waits for stack in sampled(lambda: [SampledThread(thread.ident)], 1).stacks()):
        threads.sleep(0.001)
    event.set()
    thread.join()
    here = sampled(lambda: [SampledThread(threading.get_ident(), "rows")], 3).stacks()
    assert {stack.step for stack in here} == {"rows"}


def test_a_thread_that_is_gone_is_not_seen():
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    assert sampled(lambda: [SampledThread(-1)], 5).stacks() == []


def test_different_stacks_are_bounded():
    counts = Counter({((), str(number), False): 1 for number in range(_STACKS_MAX)})
    look([SampledThread(threading.get_ident())], frames_of_threads(), counts)
    assert len(counts) == _STACKS_MAX


def test_a_garbage_collection_during_a_look_does_not_stop_the_process():
    run = subprocess.run(
        [sys.executable, "-c", _LOOKS_WHILE_GARBAGE_IS_COLLECTED], capture_output=True, text=True, timeout=60
    )
    assert (run.stdout, run.stderr) == ("looked\n", "")


def test_it_ends_when_nobody_wants_it_and_when_the_time_is_over():
    clock = ManualClock()
    looks = []

    def sleep(seconds):
        looks.append(seconds)
        clock.advance_ms(seconds * 1e3)

    sample(lambda: [], 1.0, clock, lambda: True, sleep)
    assert 90 <= len(looks) <= 120
    assert len(set(looks)) > 50, "pauses differ"
    looks.clear()
    sample(lambda: [], 1.0, clock, lambda: False, sleep)
    assert looks == []


def test_a_look_that_takes_long_is_followed_by_a_long_pause():
    clock, pauses = ManualClock(), []

    def find():
        clock.advance_ms(20)
        return []

    def sleep(seconds):
        pauses.append(seconds)
        clock.advance_ms(seconds * 1e3)

    sample(find, 10.0, clock, lambda: True, sleep)
    assert min(pauses[:-2]) >= 0.399, "the last ones end with the time"


def test_whose_code_it_is():
    assert kind_of(threads.__file__) is FrameKind.ENGINE
    assert kind_of(threading.__file__) is kind_of(pa.__file__) is kind_of("<string>") is FrameKind.LIBRARY
    assert kind_of("/home/me/shop.py") is kind_of(__file__) is FrameKind.JOB


def test_a_name_of_the_job_reaches_nobody_unquoted():
    forged = compile("pass", "/x/\x1b[2Jevil.py", "exec")
    samples = Samples(Counter({(((forged, 1),), "s", False): 3}), 1)
    (frame,) = samples.stacks()[0].frames
    assert frame.file == "x/\\x1b[2Jevil.py"
    reply = profile_to_proto(samples)
    assert (reply.stacks[0].samples, list(reply.stacks[0].frames), reply.frames[0].line) == (3, [0], 1)
