"""The client of the database alone, without a job: what it reads, and rows that warm the database up."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.events_file import SEED
from benchmarks.results import BenchmarkError
from weir.config.stores import CassandraConfig
from weir.protocol.database_run import DatabaseRun
from weir.state.cassandra.schema import state_tables
from weir.state.cassandra.session import leave_session, open_session
from weir.state.cassandra.tables import DatabaseTables
from weir.state.layout import encode_key

#: Keys that the client alone reads, at a time and in all.
_READ_KEYS, _READ_ROUNDS = 20_000, 10
#: Rows that are written before anything is measured, so that the database's compiler is done: one that has just started
#: takes ten times as much CPU for a row.
_WARM_ROWS, _WARM_KEYS, _WARM_CHUNK = 1_000_000, 100_000, 2_500


@contextmanager
def _rows(run: str, job: str, settings: CassandraConfig) -> Iterator[DatabaseTables]:
    session = open_session(settings)
    try:
        rows = DatabaseTables(session, DatabaseRun(run), state_tables(job, {"count": 0}, settings))
        rows.create()
        yield rows
    finally:
        leave_session(session)


def warm_up(port: int, groups: int) -> None:
    """Write rows of a table of its own; key groups are numbered below ``groups``."""
    with _rows("warm", "warm", CassandraConfig(port=port)) as rows:
        # In the order in which changes are written: those of a key group together.
        keys = [
            encode_key(number * groups // _WARM_KEYS, 0, b"%06d" % number) for number in range(_WARM_KEYS)
        ]
        for checkpoint_id in range(1, _WARM_ROWS // _WARM_KEYS + 1):
            for start in range(0, _WARM_KEYS, _WARM_CHUNK):
                rows.write([(key, bytes(10)) for key in keys[start : start + _WARM_CHUNK]], checkpoint_id)


def client_reads(keys: int, port: int, groups: int) -> dict[str, float]:
    """Rows per second that the client library reads of the counts, alone: each by itself, and as the store does.

    Raises:
        BenchmarkError: rows are missing.
    """
    chance = random.Random(SEED)
    listed = [encode_key(number % groups, 0, b"server-%d" % number) for number in range(keys)]
    rates = {}
    for kind, read_keys, in_flight in (("single", 1, 256), ("batched", 64, 32)):
        settings = CassandraConfig(port=port, read_keys_max=read_keys, requests_in_flight_max=in_flight)
        with _rows("client", "rescale", settings) as rows:
            if kind == "single":
                for start in range(0, keys, _READ_KEYS):
                    rows.write([(key, bytes(10)) for key in listed[start : start + _READ_KEYS]], 1)
            began_s = time.monotonic()
            for _ in range(_READ_ROUNDS):
                found = rows.get_many(chance.sample(listed, min(_READ_KEYS, keys)))
                if None in found:
                    raise BenchmarkError("the client does not find rows that it has written")
            rates[kind] = _READ_ROUNDS * min(_READ_KEYS, keys) / (time.monotonic() - began_s)
    return rates
