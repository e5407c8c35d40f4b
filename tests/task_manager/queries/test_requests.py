"""How many requests a range of ten keys makes of a database, by kind of state: that does not depend on the machine."""

from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.database_ranges import KINDS
from benchmarks.database_ranges_job import build
from task_manager.queries.live_ranges import LiveRange
from task_manager.queries.state_copies import copy_part
from weir.author.operator import OperatorContext
from weir.clock import SystemClock
from weir.operators.queries.answering import answer_range, asked_state
from weir.operators.registry import create_operator
from weir.protocol.queries import Question
from weir.rows.records import with_times
from weir.savepoints.checkpoint_reading import CheckpointReading
from weir.specs.joins import JoinSpec
from weir.specs.keyed import KeyedSpec
from weir.state.api import prefix_end
from weir.state.cassandra.asked_pages import AskedPages
from weir.state.cassandra.entries import reads_of
from weir.state.layout import encode_key
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables
from weir.types import SubtaskId

GROUPS, KEYS, ROWS, APART_MS = 128, 1_000, 12, 300_000
BOUNDS = {"first": "key-0070", "last": "key-0079"}
FIRST_MS = 1_699_999_200_000


class Requests:
    """A store in memory whose scans for questions are read in requests, as those of a database."""

    def __init__(self, backend):
        self.backend, self.made, self.scans, self.rows = backend, 0, 0, 0
        session = SimpleNamespace(begin=self._begin, wait=lambda running, check: running.result())
        self._pages = AskedPages(session, self._read)

    def get_many(self, keys):
        self.made += len(reads_of(keys, {key[2:4]: 1 for key in keys}, 64))
        return self.backend.get_many(keys)

    def start_get(self, keys):
        return lambda: self.get_many(keys)

    def scan(self, start, stop, *, prefixes=(), reverse=False):
        self.scans += 1
        last = stop[4:] if stop[:4] == start[:4] else None
        return self._pages.scan(
            start[:4], 0, (start[4:], last), reverse=reverse, look=None, check_cancelled=lambda: None
        )

    def scan_for_question(self, start, stop, *, reverse):
        return self.scan(start, stop, reverse=reverse)

    def will_scan(self, ranges, bytes_max):
        """As ``StateReader`` has it: a database has nothing to prepare."""

    def close(self):
        pass

    def _begin(self, work):
        done = Future()
        with pytest.raises(StopIteration) as ended:
            work.send(None)
        done.set_result(ended.value.value)
        return done

    async def _read(self, asked, groups, looks):
        self.made += 1
        found = {}
        for group in groups:
            prefix = group + asked.number
            stop = prefix_end(prefix) if asked.stop is None else prefix + asked.stop
            entries = self.backend.scan(prefix + asked.start, stop, reverse=asked.reverse)
            found[group] = [entry for entry, _ in zip(entries, range(asked.rows), strict=False)]
            self.rows += len(found[group])
        return found, 0


@pytest.fixture(scope="module")
def filled():
    """The job of the benchmark with its rows: of each step its tables, and the numbers of all states."""
    graph = build("none").build()
    numbers, backend, tables = {}, MemoryBackend(), {}
    backend.ownership = SimpleNamespace(epoch=lambda group: 1)
    number = np.arange(KEYS * ROWS)
    columns = {"k": [f"key-{at % KEYS:04d}" for at in number], "v": pa.array(number // KEYS, pa.int64())}
    times = pa.array(FIRST_MS + number // KEYS * APART_MS + number % KEYS, pa.int64())
    columns["t"] = times
    batch = with_times(pa.RecordBatch.from_pydict(columns), times, pa.array([0] * len(number)))
    for node in graph.nodes:
        if not isinstance(node.spec, KeyedSpec):
            continue
        ids = {name: 2 + len(numbers) + at for at, name in enumerate(node.states)}
        numbers |= {state: ids[name] for name, state in node.states.items()}
        step = tables[node.name] = StateTables(backend, 16 << 20, GROUPS)
        operator = create_operator(node.spec)
        operator.open(
            OperatorContext(
                "asked", node.name, 1, 0, 1, max_parallelism=GROUPS,
                tables=step.of(node.name, ids), schema=node.schema,
            )
        )  # fmt: skip
        for side in range(2 if isinstance(node.spec, JoinSpec) else 1):
            for piece in (batch.slice(start, 1_000) for start in range(0, len(number), 1_000)):
                given = (
                    operator.process_input(side, piece)
                    if isinstance(node.spec, JoinSpec)
                    else operator.process(piece)
                )
                list(given)
        list(operator.on_watermark(int(times[-1].as_py())))
        step.flush()
    return graph, backend, tables, numbers


def asked_of(filled, path, consistency, requests, **given):
    graph, backend, tables, numbers = filled
    step, state = path.split("/")
    question = Question(step, state, None, consistency, **(given or BOUNDS))
    asked = asked_state(graph, question)
    if consistency == "latest":
        requests.ownership = backend.ownership
        running = SimpleNamespace(
            group_state=SimpleNamespace(backend=requests),
            store=requests,
            chain=SimpleNamespace(tables=list(tables[step])),
            subtask=SimpleNamespace(subtask=SubtaskId(1, 0), progress=SimpleNamespace(watermark_ms=0)),
        )
        own = [numbers[name] for name in (asked.job_name, *asked.format.others)]
        reading = LiveRange([copy_part(running, own, GROUPS)], numbers)
    else:
        place = SimpleNamespace(tombstones=())
        checkpoint = SimpleNamespace(
            places=lambda step: dict.fromkeys(range(GROUPS), place),
            manifest=SimpleNamespace(parts=(), state_ids=numbers),
            client=lambda place: requests,
        )
        reading = CheckpointReading(checkpoint, step, state, asked.format.ttl, SystemClock())
    return answer_range(asked, reading, numbers[asked.job_name], range(GROUPS), question, lambda: None)


#: So many requests at most; those of windows read what is packed, the ends, and each of 13 panes.
REQUESTS_MAX = {
    "sliding": 40,
    "distinct": 66,
    "window_rows": 22,
    "tumbling": 12,
    "session_windows": 12,
    "join": 8,
}
OTHERS_MAX = 10


@pytest.mark.parametrize("consistency", ["latest", "checkpoint"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_range_of_ten_keys_makes_few_requests(filled, kind, consistency):
    requests = Requests(filled[1])
    asked_of(filled, KINDS[kind], consistency, requests)
    # How large entries are is known from the question before.
    requests.made = requests.scans = 0
    page = asked_of(filled, KINDS[kind], consistency, requests)
    assert [row["key"] for row in page.rows] == [f"key-{number:04d}" for number in range(70, 80)]
    assert requests.made <= REQUESTS_MAX.get(kind, OTHERS_MAX)
    # Each looks into the changes that lie in front of the rows: 13 panes, what is packed, and the ends.
    assert requests.scans <= GROUPS * 19 + 250


@pytest.fixture(scope="module")
def whole(filled):
    """All rows of each kind, by key."""
    requests = Requests(filled[1])
    return {kind: asked_of(filled, path, "latest", requests, limit=KEYS).rows for kind, path in KINDS.items()}


#: So many at most, of a page of the first ten keys that makes no more requests than a range of ten; and rows of all
#: others: three of each run, and what a group has at first of windows.
PAGE_REQUESTS_MAX = {**REQUESTS_MAX, "sliding": 50, "distinct": 90, "window_rows": 30}
PAGE_OTHERS_MAX, PAGE_ROWS_MAX = 30, 1_100
PAGE_WINDOW_ROWS_MAX = {
    "tumbling": 2_600,
    "session_windows": 2_600,
    "window_rows": 2_600,
    "sliding": 8_000,
    "distinct": 8_000,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("bounds", [{}, {"first": "key-0070"}, {"last": "key-0909"}], ids=str)
def test_a_page_of_ten_keys_reads_little_beside_them(filled, whole, kind, reverse, bounds):
    requests = Requests(filled[1])
    given = {"limit": 10, "reverse": reverse, **bounds}
    asked_of(filled, KINDS[kind], "latest", requests, **given)
    requests.made = requests.rows = 0
    page = asked_of(filled, KINDS[kind], "latest", requests, **given)
    first, last = bounds.get("first", ""), bounds.get("last", "z")
    within = [row for row in whole[kind] if first <= row["key"] <= last][:: -1 if reverse else 1]
    assert [row["key"] for row in page.rows] == [row["key"] for row in within[:10]]
    assert page.rows == within[:10]
    assert page.after == (within[9]["key"].encode() if len(within) > 10 else None)
    assert requests.made <= PAGE_REQUESTS_MAX.get(kind, PAGE_OTHERS_MAX)
    assert requests.rows <= PAGE_WINDOW_ROWS_MAX.get(kind, PAGE_ROWS_MAX)


def test_of_large_entries_few_are_read_by_a_request(filled):
    numbers = filled[3]
    backend = MemoryBackend()
    keys = [encode_key(group, numbers["states/value"], b"k%d" % group) for group in range(GROUPS)]
    backend.write([(key, bytes(100_000)) for key in keys])
    requests = Requests(backend)
    for made in (GROUPS // 8, GROUPS):
        requests.made = 0
        scans = [requests.scan(key[:5], prefix_end(key[:5])) for key in keys]
        assert [next(scan)[0] for scan in scans] == keys
        assert requests.made == made
