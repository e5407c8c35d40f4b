"""The command ``python -m experiments workflows``: what is wrong is told in one line."""

import numpy as np
import pytest

from experiments.workflows.grown import bounded_settings
from experiments.workflows.metrics import table, total
from experiments.workflows.series import size_bytes
from experiments.workflows.sweep_trial import waits, why_not_judged
from experiments.workflows.windows import FIELDS, Tally, latency_ms_at_most, merged
from weir.errors import ConfigError


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["server", "--store", "object"], "--set controlPlane.checkpoint_uri=s3://BUCKET"),
        (["server", "--store", "disk"], "--store disk: there are rocksdb, memory"),
        (["launch-tests", "1", "1", "1", "--payload", "zeros"], "--payload zeros: there are compressible"),
        (["run", "bars", "--shape", "1,2"], "--shape 1,2: give three numbers"),
        (["run", "bars", "--grown", "1T"], "--grown: '1T' is no size"),
        (["run", "bars", "--bounded-state", "1T"], "--bounded-state: '1T' is no size"),
        (["run", "bars", "--relink", "1T"], "--relink: '1T' is no size"),
        (["run", "bars", "--only", "sweep,swap"], "--only swap: there are top, paced, sweep"),
        (["run", "bars", "--only", "relink", "--relink", "900000G"], "take smaller --relink or"),
        (["run", "bars", "--log", "pulsar"], "--log pulsar: there are weir, kafka"),
        (["run", "growth", "--sizes", "1T"], "'1T' is no size"),
        (["run", "growth", "--set", "compaction"], "--set compaction: write KEY=VALUE"),
        (["run", "growth", "--sizes", "2K,1K"], "give them in ascending order"),
        (["run", "shrink"], "there is no series 'shrink'"),
        (["workflow-metrics", "--address", "127.0.0.1:9"], "127.0.0.1:9 does not answer"),
        (["streams-metrics", "--address", "127.0.0.1:9"], "workflows server` running?"),
        (["reset"], "run: python -m experiments workflows setup"),
    ],
)
def test_mistakes(experiments, tmp_path, monkeypatch, arguments, told):
    monkeypatch.chdir(tmp_path)
    if arguments[0] == "server":
        (tmp_path / "data/workflows").mkdir(parents=True)
        settings = '{"log": "weir", "bootstrap": "", "brokers": 1, "port": 7008, "partitions": 2}'
        (tmp_path / "data/workflows/workflows.json").write_text(settings)
    code, _, errors = experiments("workflows", *arguments)
    assert code != 0
    assert told in errors
    assert len(errors.strip().splitlines()) == 1


def test_a_bound_of_memory_is_what_processes_and_caches_take_together():
    settings = bounded_settings(2 << 30, 2)
    caches = ("rocksdb.block_cache_bytes", "rocksdb.write_buffer_total_bytes", "state_cache_bytes")
    taken = sum(settings[f"taskManager.{name}"] for name in caches)
    assert 600 << 20 < taken < 1 << 30
    assert settings["taskManager.rocksdb.direct_io"] is True
    with pytest.raises(ConfigError, match="--bounded-memory: 512M are too little; at least 768M"):
        bounded_settings(512 << 20, 2)


def test_what_nearly_all_commands_took_at_most():
    tally = Tally(0, 0, 1000)
    tally.row["messages_processed"] = 200
    tally.late(np.array([20] * 190 + [21] * 8 + [251] * 2))
    found = [latency_ms_at_most(tally.row, share) for share in (0.5, 0.95, 0.96, 0.99, 0.995)]
    assert found == [20, 20, 50, 50, 1000]
    tally.late(np.array([1001]))
    assert latency_ms_at_most(tally.row, 1) is None


def test_windows_of_several_subtasks_are_one():
    first = dict.fromkeys(FIELDS, 1) | {"pause_ms_max": 5}
    second = dict.fromkeys(FIELDS, 2)
    found = merged([first, second, {}])
    assert (found["task_starts"], found["pause_ms_max"], found["timer_delay_ms_max"]) == (3, 5, 2)
    assert set(total([])) == set(FIELDS)
    assert not any(total([]).values())


def test_the_table_has_means():
    window = dict.fromkeys(FIELDS, 0) | {
        "window_start_ms": 30_000,
        "task_starts": 4,
        "task_start_latency_ms": 6,
    }
    heading, line = table([window]).splitlines()
    assert heading.split()[:4] == ["window", "commands", "starts", "start"]
    assert line.split()[:5] == ["30000", "0", "4", "1.5", "0"]
    assert len(heading) == len(line)


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("3", 3), ("2k", 2048), ("256M", 256 << 20), ("4G", 4 << 30)]
)
def test_sizes(text, size):
    assert size_bytes(text) == size


def test_a_size_that_is_none():
    with pytest.raises(ConfigError):
        size_bytes("1.5G")


def test_what_a_sweep_made_rows_wait_is_told_beside_the_time_before():
    def window(at, age_ms, slices=0, held_ms=0):
        counts = {"sweep_slices": slices, "sweep_row_age_ms_max": age_ms, "sweep_held_ms_max": held_ms}
        return {"window_start_ms": at * 1000, "sweep_slice_ms_max": slices} | counts

    windows = [
        window(0, 900),
        window(1, 30),
        window(2, 25),
        window(3, 40, 5, 8),
        window(4, 10),
        window(5, 700),
    ]
    assert waits(windows[::-1]) == {
        "sweep_row_wait_ms_max": 10,
        "row_age_ms_max": 40,
        "row_age_before_ms_max": 30,
    }
    windows[3] |= {"sweep_held_ms_max": 12}
    assert waits(windows)["sweep_row_wait_ms_max"] == 12
    windows[3] |= {"sweep_slice_ms_max": 13}
    assert waits(windows)["sweep_row_wait_ms_max"] == 13, "no row came when it began"
    assert waits(windows[2:])["sweep_row_wait_ms_max"] is None, "there is not as much before it"
    assert waits(windows[:3])["sweep_row_wait_ms_max"] is None, "nothing was swept"


@pytest.mark.parametrize(
    ("way_ms", "queued_us", "told"),
    [
        (61.0, 0, "rows take up to 61 ms before anything is swept"),
        (60.0, 251, "slices waited for a processor for 25% of their time"),
        (60.0, 250, ""),
    ],
)
def test_a_sweep_is_judged_only_where_the_machine_has_time(way_ms, queued_us, told):
    why = why_not_judged(way_ms, {"sweep_queued_us": queued_us, "sweep_us": 1_000})
    assert told in why if told else why == ""
