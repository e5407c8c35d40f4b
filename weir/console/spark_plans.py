"""``weir plan JOB --runner spark``: how each step of a job runs on Spark, why some do not, and what may differ."""

from __future__ import annotations

import json

from weir.console.given_job import GivenJob
from weir.spark.modes import mode_of
from weir.spark.translation import job_on_spark


def print_spark_plan(given: GivenJob, *, streaming: bool | None, as_json: bool) -> int:
    """Print it; returns the exit code: 1 if a step does not run on Spark.

    Args:
        given: the job.
        streaming: its sources are followed; None: if one of them never ends.
        as_json: for programs.

    Raises:
        GraphError: the job cannot be found or loaded, or its graph is not valid.
        ConfigError: a setting or a flag is wrong.
    """
    graph = given.graph()
    job = job_on_spark(graph, mode_of(graph, streaming))
    if as_json:
        steps = [
            {
                "step": each.node.name,
                "kind": each.node.spec.kind,
                "runs": each.way.value,
                "reason": each.reason,
                "differs": each.differs,
            }
            for each in job.steps
        ]
        print(json.dumps({"job": job.name, "mode": job.mode, "steps": steps}, indent=2))
        return int(bool(job.refused))
    print(f"{job.name} on Spark, {job.mode}:")
    name_width = max(len(each.node.name) for each in job.steps)
    kind_width = max(len(each.node.spec.kind) for each in job.steps)
    for each in job.steps:
        told = f"{each.way.value}: {each.reason}" if each.reason else each.way.value
        told += f"; it may say otherwise: {each.differs}" if each.differs else ""
        print(f"  {each.node.name:{name_width}}  {each.node.spec.kind:{kind_width}}  {told}")
    print("the job would be refused" if job.refused else "the job would start")
    return int(bool(job.refused))
