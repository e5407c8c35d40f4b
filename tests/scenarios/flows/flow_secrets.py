"""A job with credentials in its parameters, one of which its own code quotes when it fails."""

import polars as pl

import weir


def build(input: str, sink_password: str, place: str, fails_at: int = 500) -> weir.Dataflow:
    flow = weir.Dataflow("secrets")
    events = flow.source(
        "events", weir.JsonLines(input, schema={"id": int, "server": str}, on_bad_record="fail")
    )

    def use(row):
        print(f"connecting with {len(sink_password)} characters")
        if row["id"] == fails_at:
            raise ConnectionError(f"the server refused {sink_password!r} at {place}")
        return row

    events = events.map("use", use)
    events.filter("keep", pl.col("id") >= 0).key_by("server").count("count").sink("out", weir.Blackhole())
    return flow
