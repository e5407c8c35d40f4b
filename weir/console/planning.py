"""``weir plan``: loads a job as the control plane does, and prints what it is."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from weir.console.given_job import GivenJob
from weir.console.plan_drawing import draw
from weir.errors import CheckpointError
from weir.plan.document import plan_document
from weir.plan.graph import LogicalGraph, PhysicalGraph
from weir.plan.stages import physical_graph
from weir.process.printable import one_entry
from weir.specs import DeltaSinkSpec
from weir.specs.kafka import KafkaSinkSpec, KafkaSpec
from weir.specs.lookup_joins import CassandraTableSpec, FileTableSpec, LookupJoinSpec

_WIDTH = 10_000
#: Libraries without which a step does not run, and the extra that brings them.
_LIBRARIES: Mapping[type, tuple[str, str]] = {
    DeltaSinkSpec: ("deltalake", "delta"),
    KafkaSinkSpec: ("confluent_kafka", "kafka"),
    KafkaSpec: ("confluent_kafka", "kafka"),
    CassandraTableSpec: ("acsylla", "cassandra"),
}


def print_plan(
    job: str,
    params: Sequence[str],
    path: Path | None,
    set_flags: Sequence[str],
    *,
    as_json: bool,
    from_savepoint: str = "",
    from_running: str = "",
    allow_dropped: bool = False,
) -> int:
    """Load the job and print it, or what it makes of a checkpoint; returns the exit code.

    Args:
        job: file or module.
        params: NAME=VALUE.
        path: of the configuration.
        set_flags: KEY=VALUE.
        as_json: for programs.
        from_savepoint: a savepoint or checkpoint, as ``weir run --from-savepoint`` takes it; empty: none.
        from_running: HTTP address of the control plane of a job whose latest checkpoint is meant; empty: none.
        allow_dropped: as ``--allow-dropped-state`` of the start.

    Raises:
        CheckpointError: there is no such checkpoint, or it cannot be read.
        GraphError: the job cannot be found or loaded, or its graph is not valid.
        ConfigError: a setting or a flag is wrong.
    """
    logical = GivenJob(job, params, path, set_flags).graph()
    if from_savepoint or from_running:
        return _print_changes(
            logical,
            from_savepoint or _latest_of(from_running),
            allow_dropped=allow_dropped,
            as_json=as_json,
        )
    graph = physical_graph(logical)
    tell_missing(graph)
    if as_json:
        print(json.dumps(plan_document(graph), indent=2))
    else:
        # A tree is cut at the console's width; the terminal wraps longer lines itself.
        Console(highlight=False, width=_WIDTH).print(draw(graph), soft_wrap=True)
    return 0


def _print_changes(graph: LogicalGraph, place: str, *, allow_dropped: bool, as_json: bool) -> int:
    """What becomes of the state of each step; 1 if a start would refuse it."""
    # Operators take long to import, and most plans need none.
    from weir.checkpoints.checkpoint_store import CheckpointStore
    from weir.savepoints.changes import Verdict, step_changes

    store, path = CheckpointStore.open_checkpoint(place)
    manifest = store.latest() if path is None else store.read_manifest(path)
    if manifest is None:
        raise CheckpointError(f"there is no savepoint or checkpoint at {store.location}")
    store.check_presence(manifest)
    changes = step_changes(graph, manifest, allow_dropped=allow_dropped)
    is_refused = any(change.verdict is Verdict.REFUSED for change in changes)
    if as_json:
        steps = [
            {"step": each.step, "verdict": each.verdict.value, "reason": each.reason} for each in changes
        ]
        document = {"checkpoint": manifest.checkpoint_id, "starts": not is_refused, "steps": steps}
        print(json.dumps(document, indent=2))
        return int(is_refused)
    print(f"{graph.name} from checkpoint {manifest.checkpoint_id} at {store.location}:")
    width = max((len(each.step) for each in changes), default=0)
    for each in changes:
        print(one_entry(f"  {each.step:{width}}  {each.verdict.value:12}  {each.reason}".rstrip()))
    print("the job would be refused" if is_refused else "the job would start")
    return int(is_refused)


def _latest_of(address: str) -> str:
    """Where the latest checkpoint of a running job is.

    Raises:
        CheckpointError: it has none, or is not reached.
    """
    from weir.questions.client import AskError, connect

    with connect(address) as connection:
        try:
            _, answer = connection.ask("/status", {})
        except AskError as error:
            raise CheckpointError(f"--from-running {address}: {error}") from error
    place = answer.get("latest_checkpoint_path")
    if not place:
        raise CheckpointError(f"--from-running {address}: job {answer.get('job')} has made no checkpoint yet")
    return str(place)


def tell_missing(graph: PhysicalGraph) -> None:
    """Say on standard error which libraries of extras the job needs that are not installed here."""
    for stage in graph.stages:
        for node in stage.nodes:
            library, extra = _library_of(node.spec)
            if library and find_spec(library) is None:
                print(
                    f"weir plan: step {node.name!r} needs {library}, which is not installed here; run: "
                    f"pip install 'weir[{extra}]'",
                    file=sys.stderr,
                )


def _library_of(spec: object) -> tuple[str, str]:
    """Return the library that a step needs beside Weir's own, and its extra; both empty where it needs none."""
    if isinstance(spec, LookupJoinSpec):
        spec = spec.table
    if isinstance(spec, FileTableSpec):
        return _LIBRARIES[DeltaSinkSpec] if spec.format == "delta" else ("", "")
    return _LIBRARIES.get(type(spec), ("", ""))
