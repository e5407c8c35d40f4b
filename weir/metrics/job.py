"""Metrics of the control plane: the job, its subtasks by state, and the task managers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from weir.metrics import definitions as d

_OF_STANDBYS = (d.STANDBY_LAG, d.STANDBY_LAG_BYTES, d.STANDBY_BYTES)


@dataclass(frozen=True)
class JobFacts:
    """What the control plane knows at one moment."""

    job: str
    #: Name of the state the job is in, and names of all states it can be in.
    state: str
    states: tuple[str, ...]
    generation: int = 0
    task_managers: int = 0
    slots: int = 0
    slots_used: int = 0
    #: Name of a subtask state -> how many subtasks are in it.
    subtasks: Mapping[str, int] = field(default_factory=dict)
    restarts: int = 0
    #: How a restore of a subtask ended -> how many have ended so.
    restores: Mapping[str, int] = field(default_factory=dict)
    restoring_subtasks: int = 0
    #: Since the latest complete checkpoint began; None: none is made.
    checkpoint_age_s: float | None = None
    #: Address of a task manager -> free bytes and size of the disk that has its state.
    disks: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    #: Step -> records that it rejected, or rows that were put aside.
    rejected: Mapping[str, int] = field(default_factory=dict)
    #: ``up`` or ``down`` -> decisions of the autoscaler; empty: it is off.
    autoscaled: Mapping[str, int] = field(default_factory=dict)
    slots_missing: int = 0
    #: Whose state is kept, and where -> checkpoints behind the latest (None: none is there), bytes behind, bytes kept.
    standbys: Mapping[tuple[str, str], tuple[int | None, int, int]] = field(default_factory=dict)
    standbys_missing: int = 0


class JobMetrics(Collector):
    """Shows what ``read_facts`` gives; it is called once per scrape, from the scrape's thread."""

    def __init__(self, registry: CollectorRegistry, read_facts: Callable[[], JobFacts]) -> None:
        self._read_facts = read_facts
        registry.register(self)

    def describe(self) -> list[Metric]:
        """Families without samples, so that registering reads nothing."""
        states = (d.JOB_STATE, d.JOB_SUBTASKS, d.JOB_RESTORES, d.JOB_REJECTED, d.AUTOSCALER_DECISIONS)
        numbers = (d.JOB_GENERATION, d.JOB_RESTARTS, d.JOB_RESTORING, d.TASK_MANAGERS, d.SLOTS, d.SLOTS_USED)
        others = (d.JOB_CHECKPOINT_AGE, d.DISK_FREE, d.DISK_SIZE, d.AUTOSCALER_MISSING, d.STANDBYS_MISSING)
        return [definition.family() for definition in (*states, *numbers, *others, *_OF_STANDBYS)]

    def collect(self) -> Iterator[Metric]:
        """Called by the registry at each scrape."""
        facts = self._read_facts()
        state = d.JOB_STATE.family()
        for name in facts.states:
            state.add_metric((facts.job, name), float(name == facts.state))
        yield state
        labelled = {
            d.JOB_SUBTASKS: facts.subtasks,
            d.JOB_RESTORES: facts.restores,
            d.JOB_REJECTED: facts.rejected,
            d.AUTOSCALER_DECISIONS: facts.autoscaled,
        }
        for definition, counts in labelled.items():
            by_state = definition.family()
            for name, count in counts.items():
                by_state.add_metric((facts.job, name), count)
            yield by_state
        of_job = {
            d.JOB_GENERATION: facts.generation,
            d.JOB_RESTARTS: facts.restarts,
            d.JOB_RESTORING: facts.restoring_subtasks,
            d.AUTOSCALER_MISSING: facts.slots_missing,
            d.STANDBYS_MISSING: facts.standbys_missing,
        }
        for definition, number in of_job.items():
            family = definition.family()
            family.add_metric((facts.job,), number)
            yield family
        age = d.JOB_CHECKPOINT_AGE.family()
        if facts.checkpoint_age_s is not None:
            age.add_metric((facts.job,), facts.checkpoint_age_s)
        yield age
        free, size = d.DISK_FREE.family(), d.DISK_SIZE.family()
        for address, (free_bytes, size_bytes) in facts.disks.items():
            free.add_metric((address,), free_bytes)
            size.add_metric((address,), size_bytes)
        yield free
        yield size
        lag, lag_bytes, held_bytes = standbys = [definition.family() for definition in _OF_STANDBYS]
        for labels, (behind, _, _) in facts.standbys.items():
            if behind is not None:
                lag.add_metric(labels, behind)
        # Once for each who keeps something, however many others it is of.
        for name, (_, missing, held) in {name: found for (_, name), found in facts.standbys.items()}.items():
            lag_bytes.add_metric((name,), missing)
            held_bytes.add_metric((name,), held)
        yield from standbys
        numbers = {
            d.TASK_MANAGERS: facts.task_managers,
            d.SLOTS: facts.slots,
            d.SLOTS_USED: facts.slots_used,
        }
        for definition, number in numbers.items():
            family = definition.family()
            family.add_metric((), number)
            yield family
