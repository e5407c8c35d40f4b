"""Where threads of subtasks are, seen again and again for some seconds: a profile without any right to trace processes.

``sys._current_frames`` tells the stacks of all threads of this process. A look costs some 20 µs for each subtask, and
looks are so far apart that they take a twentieth of the time at most.
"""

from __future__ import annotations

import gc
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType

from task_manager.subtasks.running import RunningSubtask
from task_manager.subtasks.source_subtask import SourceSubtask
from weir import threads
from weir.clock import Clock
from weir.operators.step_frames import step_in_frame
from weir.process.printable import one_entry
from weir.protocol.job.profile import Frame, FrameKind, Stack
from weir.types import SubtaskId

#: Between looks, on average: a hundred a second tell 1 % apart within ten seconds.
INTERVAL_S = 0.01
#: A look may take so much of the time.
_COST_MAX = 0.05
#: Frames of a stack, the innermost; different stacks; characters of a name.
_DEPTH_MAX, _STACKS_MAX, _NAME_MAX = 80, 2_000, 120
#: Looks are not in step with what the job does at regular times: pauses between them differ, by the golden ratio.
_GOLDEN = 0.618
#: What all threads begin with.
_BEGINNINGS = frozenset({"_bootstrap", "_bootstrap_inner"})

_ENGINE_FOLDERS = (f"{Path(threads.__file__).parent}/", f"{Path(__file__).parents[1]}/")
_SENDING_FOLDER = f"{_ENGINE_FOLDERS[1]}exchange/"
_LIBRARY_FOLDERS = tuple(
    f"{sysconfig.get_path(name)}/" for name in ("purelib", "platlib", "stdlib", "platstdlib")
)
#: Where a thread is that waits for another one.
_WAITING_FILES = (f"{_ENGINE_FOLDERS[0]}threads.py", "/threading.py", "/queue.py", "/selectors.py")

#: Code and line of each frame, the outermost first; the step; whether the thread waits.
_Seen = tuple[tuple[tuple[CodeType, int], ...], str, bool]


@dataclass(frozen=True, slots=True)
class SampledThread:
    """A thread of a subtask."""

    #: As ``threading.get_ident``.
    ident: int
    #: The step in which it is where no operator runs: that of a source, which reads; else empty.
    step: str = ""


@dataclass
class Samples:
    """What was seen."""

    counts: Counter[_Seen] = field(default_factory=Counter)
    subtasks: int = 0

    def stacks(self) -> list[Stack]:
        """The stacks, those that were seen most often first."""
        known: dict[tuple[CodeType, int], Frame] = {}
        return [
            Stack(tuple(_frame(place, known) for place in places), count, step, waits)
            for (places, step, waits), count in self.counts.most_common()
        ]


def threads_of(running: Mapping[SubtaskId, RunningSubtask], stage_index: int) -> list[SampledThread]:
    """The threads of the subtasks of a stage that run here."""
    found = []
    for subtask, each in list(running.items()):
        ident = each.subtask.thread_ident
        if subtask.stage_index == stage_index and ident is not None and not each.is_over:
            step = each.subtask.step if isinstance(each.subtask, SourceSubtask) else ""
            found.append(SampledThread(ident, step))
    return found


def sample(
    find: Callable[[], Sequence[SampledThread]],
    duration_s: float,
    clock: Clock,
    is_wanted: Callable[[], bool],
    sleep: Callable[[float], None] = threads.sleep,
) -> Samples:
    """Look at threads for so long; returns after that, or when nobody wants it any more.

    Args:
        find: the threads, asked with each look, since subtasks come and go.
        duration_s: how long.
        clock: tells how long.
        is_wanted: whether somebody waits for the outcome.
        sleep: does nothing for some seconds.
    """
    samples = Samples()
    ends_s, part = clock.monotonic_s() + duration_s, 0.5
    while (began_s := clock.monotonic_s()) < ends_s and is_wanted():
        seen = find()
        samples.subtasks = max(samples.subtasks, len(seen))
        look(seen, frames_of_threads(), samples.counts)
        taken_s = clock.monotonic_s() - began_s
        part = (part + _GOLDEN) % 1.0
        sleep(
            min(max(INTERVAL_S * (0.5 + part), taken_s / _COST_MAX), max(ends_s - clock.monotonic_s(), 0.0))
        )
    return samples


def frames_of_threads() -> dict[int, FrameType]:
    """Return the innermost frame of each thread of this process, by ``threading.get_ident``.

    Python before 3.11.9 holds the lock of its list of threads meanwhile: a garbage collection in there may let another
    thread run, which waits for that lock and keeps the interpreter's, for ever (CPython issue 106883).
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if collects:
            gc.enable()


def look(seen: Iterable[SampledThread], frames: Mapping[int, FrameType], counts: Counter[_Seen]) -> None:
    """Count where these threads are; of too many different stacks only those that are known already."""
    for thread in seen:
        frame = frames.get(thread.ident)
        if frame is None:
            continue
        stack = _stack(frame, thread.step)
        if stack in counts or len(counts) < _STACKS_MAX:
            counts[stack] += 1


def _stack(innermost: FrameType, own_step: str) -> _Seen:
    places: list[tuple[CodeType, int]] = []
    step: str | None = None
    waits = innermost.f_code.co_filename.endswith(_WAITING_FILES)
    frame: FrameType | None = innermost
    while frame is not None and len(places) < _DEPTH_MAX:
        code = frame.f_code
        if code.co_name not in _BEGINNINGS:
            places.append((code, frame.f_lineno))
        if kind_of(code.co_filename) is FrameKind.JOB:
            # A function that waits by itself takes the time of its step.
            waits = False
        if step is None:
            # What an operator has yielded is sent within the same call.
            step = "" if code.co_filename.startswith(_SENDING_FOLDER) else step_in_frame(frame)
        frame = frame.f_back
    places.reverse()
    return tuple(places), own_step if step is None else step, waits


@lru_cache(maxsize=4_096)
def kind_of(file: str) -> FrameKind:
    """Whose code is in a file."""
    if file.startswith(_ENGINE_FOLDERS):
        return FrameKind.ENGINE
    if file.startswith(_LIBRARY_FOLDERS) or file.startswith("<"):
        return FrameKind.LIBRARY
    return FrameKind.JOB


def _frame(place: tuple[CodeType, int], known: dict[tuple[CodeType, int], Frame]) -> Frame:
    found = known.get(place)
    if found is None:
        code, line = place
        # Names are of the job's code, which may have got them from anywhere.
        name, file = (one_entry(text)[:_NAME_MAX] for text in (code.co_qualname, _short(code.co_filename)))
        found = known[place] = Frame(name, file, line, kind_of(code.co_filename))
    return found


def _short(file: str) -> str:
    """The end of a path: from its package on, or with the folder that it is in."""
    for folder in _ENGINE_FOLDERS:
        if file.startswith(folder):
            return file[len(str(Path(folder).parent)) + 1 :]
    for folder in _LIBRARY_FOLDERS:
        if file.startswith(folder):
            return file[len(folder) :]
    return "/".join(file.split("/")[-2:])
