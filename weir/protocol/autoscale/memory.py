"""Whether hosts have the memory for a stage with fewer subtasks: those that stay take over what others had. Pure."""

from __future__ import annotations

from collections import defaultdict

from weir.protocol.autoscale.measures import JobMeasure, StageMeasure


def fewest_by_memory(stage: StageMeasure, wanted: int, job: JobMeasure, share_max: float) -> int:
    """Return how few subtasks, ``wanted`` or more, leave each host with no more memory in use than may be.

    Subtasks of a task manager count as having equal parts of its memory. Which ones stay is as ``plan_rescale`` has it:
    those with the lowest indices.
    """
    for count in range(wanted, stage.parallelism):
        if _fits(stage, count, job, share_max):
            return count
    return stage.parallelism


def _fits(stage: StageMeasure, count: int, job: JobMeasure, share_max: float) -> bool:
    hosts = {each.name: each.host for each in job.task_managers}
    memory = {each.host: each.memory_bytes for each in job.task_managers}
    parts = {each.name: each.resident_bytes / max(each.subtasks, 1) for each in job.task_managers}
    used: defaultdict[str, float] = defaultdict(float)
    for manager in job.task_managers:
        used[manager.host] += manager.resident_bytes
    placed = [each.task_manager for each in stage.subtasks if each.task_manager in hosts]
    staying, retiring = placed[:count], placed[count:]
    for name in retiring:
        used[hosts[name]] -= parts[name]
    moved = sum(parts[name] for name in retiring)
    for name in staying:
        used[hosts[name]] += moved / len(staying)
    touched = {hosts[name] for name in staying}
    return all(not memory[host] or used[host] <= share_max * memory[host] for host in touched)
