"""Whether hosts have the memory for a stage with fewer subtasks: those that stay take over what the others had. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict

from weir.protocol.autoscale.measures import JobMeasure, StageMeasure


def fewest_by_memory(stage: StageMeasure, wanted: int, job: JobMeasure, share_max: float) -> int:
    """Return how few subtasks a stage may have, at least ``wanted``, so that no host uses more of its memory than may be.

    Subtasks of a task manager count as having equal parts of its memory. Which ones stay is as ``plan_rescale`` has it:
    those with the lowest indices.
    """
    for count in range(wanted, stage.parallelism):
        if _fits(stage, count, job, share_max):
            return count
    return stage.parallelism


def _fits(stage: StageMeasure, count: int, job: JobMeasure, share_max: float) -> bool:
    managers = {each.name: each for each in job.task_managers}
    parts = {each.name: each.resident_bytes / max(each.subtasks, 1) for each in job.task_managers}
    moved = sum(parts.get(each.task_manager, 0.0) for each in stage.subtasks[count:])
    used: defaultdict[str, float] = defaultdict(float)
    memory: dict[str, int] = {}
    for each in job.task_managers:
        used[each.host] += each.resident_bytes
        memory[each.host] = each.memory_bytes
    staying = Counter(managers[each.task_manager].host for each in stage.subtasks[:count] if each.task_manager in managers)
    for each in stage.subtasks[count:]:
        if each.task_manager in managers:
            used[managers[each.task_manager].host] -= parts[each.task_manager]
    for host, subtasks in staying.items():
        used[host] += moved * subtasks / count
    return all(not memory[host] or used[host] <= share_max * memory[host] for host in staying)
