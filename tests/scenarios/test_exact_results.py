import gzip
import json
import random
from collections import Counter, defaultdict

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weir.testing
from experiments.cluster import run_job
from tests.effort import cases
from tests.scenarios.flows import flow_exchanges

pytestmark = pytest.mark.scenario

LINES, TABLE_ROWS, GZ_PARTS = 40_000, 5_000, 4


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Plain parts (cut into splits), compressed parts (one split each) and a table; and all their rows."""
    directory = tmp_path_factory.mktemp("inputs")
    (directory / "lines").mkdir()
    rng = random.Random(7)

    def row(number, part):
        return {"id": number, "server": f"server-{int(rng.paretovariate(0.7)) % 300}-ü", "part": part}

    parts = 2 + GZ_PARTS
    lines = [row(number, number % parts) for number in range(LINES)]
    for part in range(parts):
        text = "".join(json.dumps(item) + "\n" for item in lines if item["part"] == part).encode()
        if part < GZ_PARTS:
            (directory / "lines" / f"part-{part}.jsonl.gz").write_bytes(gzip.compress(text, 1))
        else:
            (directory / "lines" / f"part-{part}.jsonl").write_bytes(text)
    table = [row(number, -1) for number in range(LINES, LINES + TABLE_ROWS)]
    schema = pa.schema([("id", pa.int64()), ("server", pa.string()), ("part", pa.int64())])
    pq.write_table(pa.Table.from_pylist(table, schema), directory / "table.parquet", row_group_size=700)
    return directory, lines, table


SOME = [("rocksdb", 4), ("memory", 3)]


@pytest.mark.parametrize(("backend", "parallelism"), cases(SOME, [*SOME, ("rocksdb", 2), ("memory", 1)]))
def test_results_equal_a_batch_computation(make_cluster, inputs, tmp_path, backend, parallelism):
    directory, lines, table = inputs
    settings = {
        "taskManager.state_backend": backend,
        "taskManager.operator_quota": 16,
        # Small batches, so that many of them are in flight at once.
        "taskManager.batch_size": 500,
    }
    parameters = {
        "lines": directory / "lines",
        "table": directory / "table.parquet",
        "output": tmp_path / "out",
        "parallelism": parallelism,
    }
    cluster = make_cluster(settings=settings)
    status = run_job(cluster, "flow_exchanges", parameters)

    used = {subtask["task_manager"] for stage in status["stages"] for subtask in stage["subtasks"]}
    assert len(used) == 2
    assert status["totals"]["events_in"] == len(lines) + len(table)
    check_running_aggregates(rows(tmp_path / "out" / "running"), lines)
    check_last_values(rows(tmp_path / "out" / "last"), lines + table)
    check_copies(tmp_path / "out" / "copies", table, parallelism)


@pytest.mark.parametrize("seed", [None, 1])
def test_results_in_one_process_are_the_same(inputs, tmp_path, seed):
    directory, lines, table = inputs
    out = tmp_path / "out"
    flow = flow_exchanges.build(str(directory / "lines"), str(directory / "table.parquet"), str(out), 3)
    weir.testing.run(flow, seed=seed)
    check_running_aggregates(rows(out / "running"), lines)
    check_last_values(rows(out / "last"), lines + table)
    check_copies(out / "copies", table, 3)


def check_running_aggregates(found, lines):
    """One row for each kept event, with the values after it; events of one split in order."""
    by_server = defaultdict(list)
    for item in found:
        by_server[item["server"]].append(item)
    expected = Counter(item["server"] for item in lines if item["id"] % 4)
    assert {server: len(items) for server, items in by_server.items()} == expected
    assert sorted(item["id"] for item in found) == [item["id"] for item in lines if item["id"] % 4]
    for items in by_server.values():
        total, highest, newest = 0, -1, {}
        for number, item in enumerate(items, 1):
            total, highest = total + item["id"], max(highest, item["id"])
            assert (item["n"], item["total"], item["highest"]) == (number, total, highest)
            if item["part"] < GZ_PARTS:
                assert item["id"] > newest.get(item["part"], -1), "the order within a key was not kept"
                newest[item["part"]] = item["id"]


def check_last_values(found, events):
    """At least one row for each key, the last one with its count."""
    last = {}
    for item in found:
        key = (item["server"], item["odd"])
        assert item["odd"] == item["id"] % 2
        assert item["n"] > last.get(key, 0), "a key's count must rise"
        last[key] = item["n"]
    assert last == Counter((item["server"], item["id"] % 2) for item in events)


def check_copies(directory, table, parallelism):
    by_subtask = defaultdict(list)
    for part in sorted(directory.glob("part-*.jsonl")):
        ids = [json.loads(line)["id"] for line in part.read_text().splitlines()]
        by_subtask[part.name.split("-")[1]] += ids
    assert len(by_subtask) == parallelism
    for ids in by_subtask.values():
        assert ids == [item["id"] for item in table]


def rows(directory):
    parts = sorted(directory.glob("part-*.jsonl"))
    return [json.loads(line) for part in parts for line in part.read_text().splitlines()]
