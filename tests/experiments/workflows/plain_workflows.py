"""The workload of a workflow engine in plain Python, without the engine's rules of steps."""

import copy
from collections import Counter, defaultdict

WINDOW_MS, DELAY_MS = 30_000, 10_000
LARGEST = ("message_latency_ms", "task_start_latency_ms", "task_complete_latency_ms")


class Workflow:
    def __init__(self, tasks, launched_ms, started_ms):
        self.tasks, self.launched_ms, self.started_ms, self.completed_ms = (
            tasks,
            launched_ms,
            started_ms,
            None,
        )
        self.runs = []
        self.last_due_ms = 0


class Model:
    """What commands do; ``windows`` by their start, over all subtasks."""

    def __init__(self):
        self.workflows, self.refused, self.timers = {}, Counter(), set()
        self.windows = defaultdict(Counter)

    def copy(self):
        return copy.deepcopy(self)

    def take(self, command, now_ms):
        window = self._window(now_ms)
        self._timed(window, "messages_processed", "message_latency_ms", max(0, now_ms - command["sent_ms"]))
        for limit_ms in (20, 50, 100, 250, 1000):
            window[f"messages_over_{limit_ms}_ms"] += now_ms - command["sent_ms"] > limit_ms
        kind, name, task = command["kind"], command["workflow"], command["task"]
        workflow = self.workflows.get(name)
        reason = self._refusal(kind, workflow, task)
        if reason:
            self.refused[kind, name, task, reason] += 1
            window["rejected"] += 1
        elif kind == "StartWf":
            self.workflows[name] = Workflow(max(0, task), command["sent_ms"], now_ms)
            window["workflow_starts"] += 1
        elif kind == "StartTask":
            launched_ms = workflow.runs[-1]["completed_ms"] if workflow.runs else workflow.started_ms
            run = {"launched_ms": launched_ms, "started_ms": now_ms, "completed_ms": None, "payload": None}
            workflow.runs.append(run)
            self._timed(window, "task_starts", "task_start_latency_ms", now_ms - launched_ms)
            workflow.last_due_ms = max(now_ms + DELAY_MS, workflow.last_due_ms + 1)
            self.timers.add((workflow.last_due_ms, name))
        else:
            run = workflow.runs[-1]
            run["completed_ms"], run["payload"] = now_ms, command["payload"]
            self._timed(window, "task_completes", "task_complete_latency_ms", now_ms - run["started_ms"])
            if len(workflow.runs) == workflow.tasks:
                workflow.completed_ms = now_ms
                window["workflow_completes"] += 1

    @staticmethod
    def _refusal(kind, workflow, task):
        if kind == "StartWf":
            return "duplicate" if workflow else ""
        if kind not in ("StartTask", "CompleteTask"):
            return "unknown command"
        if workflow is None:
            return "unknown workflow"
        started, is_starting = len(workflow.runs), kind == "StartTask"
        completed = sum(run["completed_ms"] is not None for run in workflow.runs)
        if 0 <= task < (started if is_starting else completed):
            return "duplicate"
        if task != (started if is_starting else completed) or (is_starting == (started > completed)):
            return "task out of order"
        return "no such task" if 0 < workflow.tasks <= task else ""

    def fire(self, now_ms, at_ms=None):
        """Fire what is due: each at its time, or all at ``at_ms``."""
        due = {timer for timer in self.timers if timer[0] <= now_ms}
        self.timers -= due
        for due_ms, _ in due:
            self._window(due_ms if at_ms is None else at_ms)["timers_fired"] += 1

    def _window(self, now_ms):
        return self.windows[now_ms - now_ms % WINDOW_MS]

    @staticmethod
    def _timed(window, count, latency, latency_ms):
        window[count] += 1
        window[latency] += latency_ms
        window[f"{latency}_max"] = max(window[f"{latency}_max"], latency_ms)
