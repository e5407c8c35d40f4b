"""Runs a case in this thread: splits give their rows when they are told to, with restarts between."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import weir
from benchmarks.law.cases import BOUND_MS, SCHEMA, Case, Row
from weir import testing

#: Makes the step "out" of the streams, by key, with so many subtasks.
Build = Callable[[list[Any], int], Any]
#: More pieces than there are.
_ALL = 10**9
#: A split that has nothing is asked again after half a second at most.
_ASKED_AGAIN_MS = 600
_OTHER_PARTS = 16


class Gates:
    """How many pieces each split of each stream may give now."""

    def __init__(self) -> None:
        self.left: dict[tuple[int, int], int] = {}
        self.is_open = False

    def passes(self, stream: int, split: int) -> bool:
        """Whether it may give one more."""
        left = self.left.get((stream, split), 0)
        self.left[stream, split] = left - 1 if left else 0
        return self.is_open or left > 0


class Pieces(weir.Source):
    """The splits of a stream, in pieces."""

    def __init__(self, case: Case, stream: int, gates: Gates) -> None:
        """See :class:`Case`."""
        self._case, self._stream, self._gates = case, stream, gates
        self._rows: list[list[Row]] = case.streams[stream]
        self._random = random.Random(case.seed)

    def splits(self) -> list[int]:
        """See :class:`weir.Source`."""
        return list(range(len(self._rows)))

    def read(self, split: Any, position: Any) -> Iterator[tuple[list[Row], int] | None]:
        """See :class:`weir.Source`."""
        at, rows = position or 0, self._rows[split]
        while at < len(rows):
            if not self._gates.passes(self._stream, split):
                yield None
                continue
            stop = at + (self._case.cut or self._random.choice([1, 1, 2, 7, 30]))
            yield rows[at:stop], min(stop, len(rows))
            at = stop


def told(build: Build, case: Case) -> list[dict[str, Any]]:
    """What a step says in a case, with its event times, in order for each key."""
    gates, rng = Gates(), random.Random(case.seed)
    rows: list[dict[str, Any]] = []
    job = _started(build, case, 0, gates, None)
    try:
        for number in range(case.interruptions):
            _read_some(job, case, gates, rng)
            kind = rng.choice(["restart", "restart", "torn", "savepoint"])
            if kind == "savepoint":
                savepoint = job.savepoint()
                rows += job.rows("out").to_dicts(times=True)
                job.stop()
                job = _started(build, case, number + 1, gates, savepoint)
                continue
            job.checkpoint()
            _read_some(job, case, gates, rng)
            if kind == "torn":
                job.checkpoint("prepared")
            gates.left.clear()
            job.restart()
        _read_some(job, case, gates, rng)
        gates.is_open = True
        job.finish()
        return rows + job.rows("out").to_dicts(times=True)
    finally:
        job.stop()


def _started(build: Build, case: Case, part: int, gates: Gates, savepoint: Any) -> testing.RunningJob:
    gates.left.clear()
    if case.seed % 3 == 0:
        # Some splits have rows at the very start, before anything is known of the others.
        gates.left |= {
            (stream, split): 1 for stream, splits in enumerate(case.streams) for split in range(len(splits))
        }
    flow = weir.Dataflow("law", max_parallelism=_OTHER_PARTS)
    bound = weir.bounded_out_of_orderness(f"{BOUND_MS}ms", idle_timeout="1000h")
    streams = []
    for index in range(len(case.streams)):
        source = weir.UserSource(lambda index=index: Pieces(case, index, gates), schema=SCHEMA)
        read = flow.source(
            f"stream{index}", source, event_time="at", watermark=bound, parallelism=case.readers
        )
        streams.append(read)
    build(streams, case.parallelism[part])
    return testing.start(
        flow,
        {},
        seed=case.seed + part,
        from_savepoint=savepoint,
        state="rocksdb" if case.seed % 8 == 0 else "memory",
        collect_sinks=True,
    )


def _read_some(job: testing.RunningJob, case: Case, gates: Gates, rng: random.Random) -> None:
    """Let splits get on, some of them further than others."""
    for stream, splits in enumerate(case.streams):
        for split, rows in enumerate(splits):
            most = len(rows) if case.cut == 1 else 6
            gates.left[stream, split] = rng.choice([0, 1, rng.randint(0, most)])
    job.advance_time(_ASKED_AGAIN_MS)
