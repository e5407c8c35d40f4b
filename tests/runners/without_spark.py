"""What runs in the tasks of a stream of Spark, called as Spark does: triggers, key groups and their state.

Steps that would be Spark's own run by Weir's operators here; ``python -m tests.runners.matrix`` has all of it on Spark.
"""

import json
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
from pyspark.serializers import CloudPickleSerializer

from weir.rows.records import EVENT_TIME_COLUMN
from weir.rows.side_outputs import output_id
from weir.spark.bounds import bound_ms
from weir.spark.declared import DeclaredStep
from weir.spark.marks import MARK_COLUMN, OF_COLUMN, MarkedTask, Marking, apart
from weir.spark.packed import GROUP, MARK_MS, ROWS, Packing, Unpacking, groups_of
from weir.spark.stateful import StatefulStep
from weir.spark.streams import has_state, upstream_of
from weir.spark.task_frames import Task
from weir.spark.task_graph import TaskGraph
from weir.spark.task_steps import NUMBER_COLUMN, ORDER_COLUMN, TaskSteps
from weir.spark.translation import job_on_spark
from weir.specs import AssignEventTimeSpec, CollectSpec, SourceSpec, UnionSpec
from weir.specs.broadcast import BroadcastProcessSpec
from weir.specs.window_parts import WindowPartSpec

_HIDDEN = (EVENT_TIME_COLUMN, ORDER_COLUMN, OF_COLUMN, MARK_COLUMN)
_LEAVING = pa.schema([(MARK_MS, pa.int64()), (ROWS, pa.binary())])


def tell(step, reason, rows):
    """Nobody looks at rows that are put aside."""


class Kept:
    """What Spark keeps of one state of one key group."""

    def __init__(self):
        self.value, self.entries = None, {}

    def get(self):
        return self.value

    def update(self, value):
        self.value = (json.loads(json.dumps(value[0])),)

    def exists(self):
        return bool(self.entries)

    def getValue(self, key):
        return self.entries.get(key)

    def updateValue(self, key, value):
        self.entries[key] = value

    def removeKey(self, key):
        self.entries.pop(key, None)

    def iterator(self):
        return iter(list(self.entries.items()))


class Stream:
    """A job between two starts; each call of :meth:`run` is a trigger in which all that is new is read."""

    def __init__(self, graph, groups=2):
        job = job_on_spark(graph, "streaming")
        assert not job.refused
        self._nodes = {step.node.name: step.node for step in job.steps}
        self._read = {item.output_id for node in self._nodes.values() for item in node.inputs}
        self._groups = min(groups, groups_of(graph.max_parallelism))
        #: By step, key group and state.
        self._kept = {}

    def run(self, path_of=None):
        """Run a trigger; returns the rows that came to each end. ``path_of``: what a source reads in it."""
        made, collected = {}, {}
        for node in self._nodes.values():
            inputs = [made[item.output_id] for item in node.inputs]
            if isinstance(node.spec, CollectSpec):
                rows = [apart(batch)[0].drop_columns([ORDER_COLUMN]) for batch in inputs[0]]
                collected[node.name] = pa.Table.from_batches(rows) if rows else None
            elif not node.is_sink:
                made |= self._made(node, inputs, path_of)
        return collected

    def _made(self, node, inputs, path_of):
        given = tuple(self._nodes[item.producer].schema_of(item.output) for item in node.inputs)
        sides = [side.name for side in node.side_outputs if output_id(node.name, side.name) in self._read]
        bounds = tuple(bound_ms(self._nodes, item.producer) for item in node.inputs)
        steps = TaskSteps(node, given, bounds, ("", *sides), 1, {})
        if isinstance(node.spec, SourceSpec):
            if path_of is not None:
                spec = replace(node.spec, path=path_of(node.spec.path))
                steps = replace(steps, node=replace(node, spec=spec))
            return {node.name: list(Marking(node.name)(Task(steps, tell)([])))}
        if isinstance(node.spec, UnionSpec):
            names = [*node.schema.names, *_HIDDEN]
            return {node.name: [batch.select(names) for batches in inputs for batch in batches]}
        if has_state(node):
            return self._divided(node, steps, list(self._with_state(node, steps, inputs)))
        steps = replace(steps, bounds_ms=(1 << 50,))
        if isinstance(node.spec, WindowPartSpec):
            steps = replace(steps, node=replace(node, spec=replace(node.spec, rows_min=1 << 62)))
        if isinstance(node.spec, AssignEventTimeSpec):
            rows = (apart(batch)[0] for batch in inputs[0])
            return {node.name: list(Marking(node.name)(Task(steps, tell)(rows)))}
        return self._divided(node, steps, list(MarkedTask(steps, tell)(inputs[0])))

    def _with_state(self, node, steps, inputs):
        keys = [tuple(node.spec.keys_of_input(number)) for number in range(len(inputs))]
        groups, coming = self._groups if any(keys) else 1, {}
        for number, batches in enumerate(inputs):
            to_all = isinstance(node.spec, BroadcastProcessSpec) and number == 1
            packing = Packing(number, keys[number], steps.inputs[number], groups, to_all)
            for packed in packing(batches):
                for row in packed.to_pylist():
                    coming.setdefault(row[GROUP], []).append(row)
        upstream = [upstream_of(self._nodes, item.producer) for item in node.inputs]
        for group, rows in coming.items():
            step = StatefulStep(TaskGraph(steps), upstream, tell)

            def state(name, *_, group=group):
                return self._kept.setdefault((node.name, group, name), Kept())

            declared = DeclaredStep(step.state_names, CloudPickleSerializer().dumps(step))
            declared.init(SimpleNamespace(getValueState=state, getMapState=state))
            left = [row.asDict() for row in declared.handleInputRows((group,), rows, None)]
            leaving = pa.RecordBatch.from_pylist(left, _LEAVING)
            yield from Unpacking(node.name, steps.wire)([leaving])

    def _divided(self, node, steps, batches):
        if len(steps.outputs) < 2:
            return {node.name: batches}
        found = {}
        for number, output in enumerate(steps.outputs):
            chosen = []
            for batch in batches:
                is_of = pa.compute.equal(batch.column(NUMBER_COLUMN), number).fill_null(False)
                rows = batch.filter(pa.compute.or_(is_of, batch.column(OF_COLUMN).is_valid()))
                names = node.schema_of(output).names
                inner = rows.column(f"_{number}")
                columns = [pa.compute.struct_field(inner, name) for name in names]
                columns += [rows.column(name) for name in _HIDDEN]
                chosen.append(pa.RecordBatch.from_arrays(columns, [*names, *_HIDDEN]))
            found[output_id(node.name, output)] = chosen
        return found
