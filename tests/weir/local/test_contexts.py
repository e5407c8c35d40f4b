"""What operators and sinks of one's own know of their place, in one process as on task managers."""

import weir

SEEN: dict[str, tuple[str, bool]] = {}


class Noted(weir.Operator):
    def open(self, context):
        SEEN["operator"] = context.operator_name, context.is_sink

    def process(self, batch):
        yield batch


class NotedSink(weir.Sink):
    def open(self, context):
        SEEN["sink"] = context.operator_name, context.is_sink

    def write(self, batch):
        pass


def test_a_sink_knows_that_it_is_one(tmp_path):
    SEEN.clear()
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n')
    flow = weir.Dataflow("places")
    rows = flow.source("rows", weir.JsonLines(str(path), schema={"a": int}))
    rows.apply("noted", Noted).sink("out", weir.UserSink(NotedSink))
    weir.run(flow)
    assert SEEN == {"operator": ("noted", False), "sink": ("out", True)}
