"""A followed directory and sources of one's own, to SQLite in transactions and to Parquet; it never ends."""

from functools import partial

import weir
from weir.examples.sqlite_sink import TransactionSink
from weir.examples.sqlite_source import NewRows

SCHEMA = {"id": int, "name": str}


class Largest(weir.Operator):
    """Passes all rows on; its snapshot is the largest id."""

    def open(self, context):
        self.largest = max(context.restored.values(), default=-1)

    def process(self, batch):
        self.largest = max(self.largest, max(batch.column("id").to_pylist()))
        yield batch

    def snapshot(self, checkpoint_id):
        return self.largest


def build(inbox: str, database: str, output: str) -> weir.Dataflow:
    flow = weir.Dataflow("own")
    files = flow.source("files", weir.JsonLines(inbox, schema=SCHEMA, follow=True), parallelism=2)
    records = weir.Csv(inbox + "_csv", schema=SCHEMA, follow=True, order="modified")
    files = files.union("all_files", flow.source("records", records, parallelism=2))
    source = weir.UserSource(partial(NewRows, database, "orders"), schema=SCHEMA)
    rows = flow.source("rows", source, parallelism=2)
    both = rows.rebalance().union("both", files.rebalance(), parallelism=2).apply("largest", Largest)
    both.sink("delivered", weir.UserSink(partial(TransactionSink, f"{output}/delivered.db", "orders")))
    both.sink("tables", weir.ParquetSink(f"{output}/tables"))
    return flow
