"""Sources that never end, and sinks and operators of one's own, over the death of a task manager: rows come once."""

import contextlib
import gzip
import json
import sqlite3

import polars as pl
import pytest

from weir.examples.sqlite_source import insert

pytestmark = pytest.mark.scenario

SETTINGS = {
    "taskManager.operator_quota": 20,
    "controlPlane.checkpoint_interval_ms": 300,
    "controlPlane.checkpoint_pause_ms": 100,
    "controlPlane.lease_timeout_ms": 5000,
    "controlPlane.restart_attempts": 20,
}
ROWS = 500


def test_rows_of_followed_sources_are_delivered_once(make_cluster, tmp_path):
    inbox, database, output = tmp_path / "inbox", str(tmp_path / "shop.db"), tmp_path / "out"
    inbox.mkdir()
    records = tmp_path / "inbox_csv"
    records.mkdir()
    output.mkdir()
    written = 0

    def add():
        """Some files, and rows of the table."""
        nonlocal written
        for _ in range(4):
            ids = range(written, written + ROWS)
            if written % (2 * ROWS):
                # A name that is ignored, until the whole file is there.
                hidden = records / f".{written}.csv.gz"
                text = "name,id\n" + "".join(f'"file\n{n}",{n}\n' for n in ids)
                hidden.write_bytes(gzip.compress(text.encode()))
                hidden.rename(records / f"{written}.csv.gz")
                written += ROWS
                continue
            hidden = inbox / f".{written}.jsonl"
            hidden.write_text("".join(json.dumps({"id": n, "name": f"file-{n}"}) + "\n" for n in ids))
            hidden.rename(inbox / f"{written}.jsonl")
            written += ROWS
        insert(database, "orders", [{"id": n, "name": f"row-{n}"} for n in range(written, written + ROWS)])
        written += ROWS

    def delivered():
        with contextlib.closing(sqlite3.connect(output / "delivered.db")) as connection:
            try:
                return [row[0] for row in connection.execute("SELECT id FROM orders ORDER BY id")]
            except sqlite3.OperationalError:
                return []

    def in_tables():
        parts = sorted((output / "tables").glob("part-*.parquet"))
        return sorted(number for part in parts for number in pl.read_parquet(part)["id"].to_list())

    def all_there(_):
        return len(delivered()) >= written and len(in_tables()) >= written

    add()
    cluster = make_cluster(settings=SETTINGS)
    parameters = {"inbox": inbox, "database": database, "output": output}
    cluster.start_control_plane("flow_own", parameters, exit_when_finished=False)
    for name in ("first", "second"):
        cluster.start_task_manager(name)
    cluster.wait_for(all_there, "the first rows")
    for victim, successor in (("first", "third"), ("second", "fourth")):
        add()
        cluster.processes[victim].popen.kill()
        cluster.start_task_manager(successor)
        add()
        cluster.wait_for(all_there, f"the rows after {victim} was killed")
    assert cluster.status()["generation"] >= 3
    assert delivered() == in_tables() == list(range(written))
