"""The loop over a control plane of real parts: reports in, decisions, rescales; in virtual time."""

import asyncio
import logging
import time

import pytest

from control_plane.autoscale.autoscaling import policy_settings
from control_plane.autoscale.hook import MissingSlots, hook_of
from tests.control_plane.cluster import COUNT, SOURCE, Cluster
from tests.control_plane.virtual import run
from tests.control_plane.virtual import until as until_at_once
from weir.config import AutoscalerConfig, ControlPlaneConfig
from weir.protocol.job.job_machine import JobState
from weir.types import SubtaskId

#: Rows a second that a subtask of the count processes, and that come.
CAPACITY, COMING = 500.0, 1_400.0


async def until(condition):
    """As the other one, with fewer looks: decisions take many seconds."""
    for _ in range(2_000):
        if condition():
            return
        await asyncio.sleep(0.25)
    raise AssertionError("the condition does not come true")


class Load:
    """Reports of a job whose count can process less than what comes; in virtual time."""

    def __init__(self, cluster, clock):
        self.cluster, self.clock, self.began_s = cluster, clock, clock.monotonic_s()
        self.coming = COMING
        self.rows, self.overdue, self.figures = 0.0, 0.0, {}

    async def live(self, step_s=0.25):
        while True:
            await asyncio.sleep(step_s)
            counts = self.cluster.job.graph.stage(COUNT).subtasks()
            able = CAPACITY * len(counts) * step_s
            offered = self.overdue + self.coming * step_s
            taken = min(offered, able)
            self.overdue = offered - taken
            is_held = self.overdue > 1
            for subtask in [SubtaskId(SOURCE, 0), *counts]:
                is_source = subtask.stage_index == SOURCE
                busy = 0.05 if is_source else taken / able
                rows = taken if is_source else taken / len(counts)
                self._add(subtask, step_s, busy, rows, 0.9 if is_source and is_held else 0.0)
            self.figures[SubtaskId(SOURCE, 0)]["rows_overdue"] = int(self.overdue)
            for member in self.cluster.task_managers.values():
                member.causes = {
                    subtask: {name: int(value) for name, value in self.figures[subtask].items()}
                    for subtask in member.states
                    if subtask in self.figures
                }

    def _add(self, subtask, step_s, busy, rows, blocked):
        us = step_s * 1e6
        figures = self.figures.setdefault(subtask, dict.fromkeys(("records_in", "records_out", "busy_us"), 0))
        for name, more in (
            ("records_in", rows),
            ("records_out", rows),
            ("busy_us", busy * us),
            ("backpressured_us", blocked * us),
            ("idle_us", (1 - busy - blocked) * us),
        ):
            figures[name] = figures.get(name, 0) + more
        figures.setdefault("first_batch_us", 1)
        figures["last_batch_us"] = (self.clock.monotonic_s() - self.began_s) * 1e6


async def loaded(clock, quota=8, **settings):
    """A running job under load."""
    config = AutoscalerConfig(**{"enabled": True, "window_s": 4.0, "cool_down_s": 2.0, **settings})
    cluster = Cluster(clock, autoscaler=config)
    for address in ("127.0.0.1:1", "127.0.0.1:2"):
        member = cluster.add(address, quota)
        await member.register()
        cluster.background.spawn(member.live())
    await until_at_once(lambda: cluster.state is JobState.RUNNING)
    load = Load(cluster, clock)
    cluster.background.spawn(load.live())
    cluster.background.spawn(cluster.parts.autoscaling.run())
    return cluster, load


def parallelism(cluster):
    return cluster.job.graph.stage(COUNT).parallelism


def test_a_loaded_stage_grows_by_a_rescale_and_shrinks_when_less_comes():
    async def test(clock):
        cluster, load = await loaded(clock, scale_down_after_s=20.0)
        scaling = cluster.parts.autoscaling
        await until(lambda: parallelism(cluster) >= 4)
        assert scaling.decisions[0].text.startswith("scales stage 1 `count -> out` from 2 to ")
        assert scaling.counts["up"] >= 1
        await until(lambda: load.overdue < 1)
        load.coming = 100.0
        await until(lambda: parallelism(cluster) == 1 and cluster.parts.rescaler.log.current is None)
        assert scaling.counts["down"] == 1
        phases = [item["phase"] for item in cluster.parts.rescaler.log.to_list()]
        assert set(phases) == {"COMPLETE"}

    run(test)


def test_a_dry_run_only_says_it_and_once(caplog):
    async def test(clock):
        cluster, _ = await loaded(clock, dry_run=True)
        scaling = cluster.parts.autoscaling
        with caplog.at_level(logging.INFO, "control_plane"):
            await until(lambda: scaling.decisions)
            await asyncio.sleep(20)
        assert scaling.line.startswith("dry run: stage 1 `count -> out` from 2 to ")
        assert parallelism(cluster) == 2
        assert not cluster.parts.rescaler.log.to_list()
        said = [record.message for record in caplog.records if "would scale" in record.message]
        assert len(said) == 1

    run(test)


def test_missing_slots_are_counted_and_told_to_the_hook_now_and_then():
    async def test(clock):
        cluster, _ = await loaded(clock, quota=2, hook_command=("true",))
        scaling, told = cluster.parts.autoscaling, []
        scaling._hook = told.append
        await until(lambda: told)
        assert scaling.slots_missing >= 1
        assert told[0].slots_missing >= 1
        assert told[0].job_id == cluster.job.identity.job_id
        await asyncio.sleep(30)
        assert len(told) == 1
        await asyncio.sleep(40)
        assert len(told) == 2

    run(test)


def test_a_rescale_by_hand_begins_a_new_window():
    async def test(clock):
        cluster, load = await loaded(clock)
        load.coming = 500.0
        scaling = cluster.parts.autoscaling
        await until(lambda: scaling.line.startswith("no stage needs"))
        cluster.parts.rescaler.request(COUNT, 3)
        await until(lambda: parallelism(cluster) == 3 and cluster.parts.rescaler.log.current is None)
        await until(lambda: scaling.line.startswith("waits for figures"))
        await until(lambda: "after the last change" in scaling.line)

    run(test)


def test_bounds_of_a_step_that_the_job_has_not_are_told(caplog):
    async def test(clock):
        with caplog.at_level(logging.WARNING, "control_plane"):
            cluster, _ = await loaded(clock, stages=("cuont=2..8", "count=1..8"))
            await until(lambda: parallelism(cluster) > 2)
        (said,) = [line for line in caplog.messages if line.startswith("autoscaler.stages")]
        assert said.startswith("autoscaler.stages names cuont, but no stage has such a step; there are ")
        assert "count -> out" in said

    run(test)


def test_a_job_that_does_not_run_is_left_alone():
    async def test(clock):
        cluster, _ = await loaded(clock)
        cluster.parts.coordinator.cancel()
        await until(lambda: "the job is CANCEL" in cluster.parts.autoscaling.line)

    run(test)


def test_a_command_that_fails_is_told_in_one_line(caplog):
    missing = MissingSlots("job-1", 3, "stage 1")
    with caplog.at_level(logging.INFO, "control_plane"):
        hook_of(AutoscalerConfig(hook_command=("sh", "-c", 'echo "$WEIR_SLOTS_MISSING wanted"; exit 3')))(
            missing
        )
        hook_of(AutoscalerConfig(hook_command=("/nowhere/there",)))(missing)
        hook_of(AutoscalerConfig(hook_url="http://127.0.0.1:9/x"))(missing)
    ended, absent, refused = [record.message for record in caplog.records]
    assert ended == "autoscaler.hook_command ended with exit code 3: 3 wanted"
    assert absent.startswith("autoscaler.hook_command /nowhere/there: ")
    assert refused.startswith("autoscaler.hook_url at http://127.0.0.1:9: ")
    assert hook_of(AutoscalerConfig()) is None


def test_a_command_may_leave_a_program_running_that_goes_on_writing(tmp_path, caplog):
    written, go_on = tmp_path / "written", tmp_path / "go_on"
    left = f"(while [ ! -e {go_on} ]; do sleep 0.02; done; echo more && touch {written}) & echo started"
    with caplog.at_level(logging.INFO, "control_plane"):
        hook_of(AutoscalerConfig(hook_command=("sh", "-c", left)))(MissingSlots("job-1", 1, "stage 1"))
    assert caplog.messages == ["autoscaler.hook_command ended with exit code 0: started"]
    go_on.touch()
    until_s = time.monotonic() + 10
    while not written.exists():
        assert time.monotonic() < until_s, "it could not write any more"
        time.sleep(0.01)


@pytest.mark.parametrize("name", ["window_s", "cool_down_s", "growth_max", "memory_share_max", "catch_up_s"])
def test_settings_reach_the_policy(name):
    config = AutoscalerConfig(**{name: 3.0 if name != "memory_share_max" else 0.5})
    settings = policy_settings(config, ControlPlaneConfig(scale_up_portion=0.4))
    assert getattr(settings, name) == getattr(config, name)
    assert settings.scale_up_portion == 0.4
