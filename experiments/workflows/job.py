"""The job: commands of a topic, the states of workflows, their timers, and windows of metrics.

::

    commands -> by workflow: engine | refused commands -> topic
                               | counts -> by subtask: metrics
                               | timers -> alarms | counts -> metrics        (timers=engine)
                               | timers -> by subtask: sweep -> metrics      (timers=sweep)

``python -m experiments workflows server`` runs it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import weir
from experiments.workflows.alarms import Alarms
from experiments.workflows.commands import COLUMNS, SENT
from experiments.workflows.engine import (
    COUNTS,
    KEY,
    REFUSED,
    REFUSED_ROW,
    TIMER_ROW,
    ByBatch,
    ByRecord,
    Settings,
)
from experiments.workflows.sweep import Sweep, SweepSettings
from experiments.workflows.windows import ROW, Windows
from weir.errors import ConfigError

INPUT_TOPIC, REJECTED_TOPIC = "input", "rejected"
ENGINE, ALARMS, SWEEP, METRICS = "engine", "alarms", "sweep", "metrics"
FORMS = {"batches": ByBatch, "records": ByRecord}
LOGS = ("weir", "kafka")
TIMER_KINDS = ("engine", "sweep", "none")


def build(
    bootstrap: str = "localhost:7008",
    log: str = "weir",
    topic: str = INPUT_TOPIC,
    rejected: str = REJECTED_TOPIC,
    parallelism: int = 1,
    form: str = "batches",
    timers: str = "engine",
    timer_delay_ms: int = 10_000,
    sweep_every_ms: int = 40_000,
    window_ms: int = 30_000,
    max_parallelism: int = 128,
) -> weir.Dataflow:
    """The job.

    Args:
        bootstrap: addresses of brokers.
        log: where the commands are: "weir" (the replicated log) or "kafka".
        topic: with the commands.
        rejected: topic for commands that are refused, with the reason.
        parallelism: of the source and of the engine.
        form: "batches" or "records": whether the engine takes a batch or a command at a time.
        timers: "engine" (each is a timer of the engine), "sweep" (a range scan with deletes) or "none".
        timer_delay_ms: from the start of a task to its timer.
        sweep_every_ms: from one sweep to the next.
        window_ms: length of the windows of metrics.
        max_parallelism: number of key groups.
    """
    for name, value, known in (("log", log, LOGS), ("form", form, FORMS), ("timers", timers, TIMER_KINDS)):
        if value not in known:
            raise ConfigError(f"{name} is {value!r}; it is one of: {', '.join(known)}")
    flow = weir.Dataflow("workflows", max_parallelism=max_parallelism)
    commands = flow.source("commands", _source(log, bootstrap, topic), parallelism=parallelism)
    settings = Settings(timer_delay_ms, window_ms)
    engine = commands.key_by(KEY).process(
        ENGINE,
        partial(FORMS[form], settings),
        TIMER_ROW,
        side_outputs={COUNTS: ROW, REFUSED: REFUSED_ROW},
        parallelism=parallelism,
    )
    # Not tied to the engine, which can be scaled alone.
    refused = engine.side_output(REFUSED).rebalance()
    refused.sink("refused", _sink(log, bootstrap, rejected), parallelism=1)
    counts = [engine.side_output(COUNTS)]
    if timers == "engine":
        alarms = engine.key_by(KEY).process(
            ALARMS, partial(Alarms, window_ms), TIMER_ROW, side_outputs={COUNTS: ROW}
        )
        alarms.sink("nothing", weir.Blackhole())
        counts.append(alarms.side_output(COUNTS))
    elif timers == "sweep":
        every = partial(
            Sweep, SweepSettings(sweep_every_ms, timer_delay_ms=timer_delay_ms, window_ms=window_ms)
        )
        counts.append(engine.key_by("subtask").process(SWEEP, every, ROW, parallelism=parallelism))
    else:
        engine.sink("nothing", weir.Blackhole())
    counted = counts[0]
    if counts[1:]:
        counted = counted.rebalance().union(
            "counted", *(each.rebalance() for each in counts[1:]), parallelism=1
        )
    metrics = counted.key_by("subtask").process(METRICS, Windows, ROW, parallelism=1)
    metrics.sink("nowhere", weir.Blackhole())
    return flow


def _source(log: str, bootstrap: str, topic: str) -> Any:
    columns = {**COLUMNS, SENT: int}
    if log == "kafka":
        return weir.Kafka(
            bootstrap=bootstrap, topics=topic, schema=columns, parts={SENT: "timestamp"}, event_time=SENT
        )
    return weir.LogSource(
        bootstrap=bootstrap, topic=topic, schema=columns, parts={SENT: "timestamp"}, event_time=SENT
    )


def _sink(log: str, bootstrap: str, topic: str) -> Any:
    if log == "kafka":
        return weir.KafkaSink(topic, bootstrap=bootstrap, key=KEY)
    return weir.LogSink(topic, bootstrap=bootstrap, key=KEY)
