"""The loss of a task manager that runs a subtask."""


def task_manager_of(cluster, stage, subtask=0):
    """The process that runs a subtask of a stage."""
    place = cluster.status()["stages"][stage]["subtasks"][subtask]["task_manager"]
    return next(process for process in cluster.processes.values() if place.endswith(f":{process.port}"))


def lose_task_manager(cluster, stage, subtask=0):
    """Kill whoever runs a subtask, and wait until the job goes on without it; returns its status.

    On a busy machine the job may have been restarted before, because another one was silent for too long.
    """
    before = cluster.status()["generation"]
    victim = task_manager_of(cluster, stage, subtask)
    victim.popen.kill()

    def goes_on(status):
        places = [item["task_manager"] for each in status["stages"] for item in each["subtasks"]]
        is_there = any(place.endswith(f":{victim.port}") for place in places)
        return status["generation"] > before and status["state"] == "RUNNING" and not is_there

    return cluster.wait_for(goes_on, "the restart without what was lost")
