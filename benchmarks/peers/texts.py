"""The queries that all systems run, and the tables that they read.

q5 and q7 rank windows (``ROW_NUMBER`` over ``window_start`` and ``window_end``), for which Flink has an operator of its
own, in place of the join with the maximum. Ties are decided, so that results can be compared row by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.nexmark_sql import SQL
from weir.errors import ConfigError

Kind = Literal["BIGINT", "DOUBLE", "STRING", "TIME", "WINDOW"]
#: How late a row of Nexmark may come, for the watermark of each system.
OUT_OF_ORDERNESS_S = 2

#: Columns of each table, in the order of the files. A ``TIME`` is ms since 1970 in the files.
TABLES: dict[str, dict[str, Kind]] = {
    "person": {
        "id": "BIGINT",
        "name": "STRING",
        "email_address": "STRING",
        "credit_card": "STRING",
        "city": "STRING",
        "state": "STRING",
        "date_time": "TIME",
        "extra": "STRING",
    },
    "auction": {
        "id": "BIGINT",
        "item_name": "STRING",
        "description": "STRING",
        "initial_bid": "BIGINT",
        "reserve": "BIGINT",
        "date_time": "TIME",
        "expires": "TIME",
        "seller": "BIGINT",
        "category": "BIGINT",
        "extra": "STRING",
    },
    "bid": {
        "auction": "BIGINT",
        "bidder": "BIGINT",
        "price": "BIGINT",
        "channel": "STRING",
        "url": "STRING",
        "date_time": "TIME",
        "extra": "STRING",
    },
    "events": {"id": "BIGINT", "server_name": "STRING"},
}
#: The column of a table that has a watermark.
EVENT_TIME = "date_time"


@dataclass(frozen=True)
class Query:
    """One query."""

    text: str
    #: That it reads.
    tables: tuple[str, ...]
    #: Of the result. A ``WINDOW`` is the begin of a window.
    columns: Mapping[str, Kind]
    #: Columns that tell the rows of the result apart, where later rows take the place of earlier ones; None: each row
    #: is final.
    key: tuple[str, ...] | None = None
    #: The text for Spark, which has no window functions in FROM; "": the same.
    spark: str = field(default="", repr=False)


_WINDOWED_BIDS = "TABLE(HOP(TABLE bid, DESCRIPTOR(date_time), INTERVAL '2' SECOND, INTERVAL '10' SECOND))"
_TUMBLING = "TABLE(TUMBLE(TABLE {}, DESCRIPTOR(date_time), INTERVAL '10' SECOND))"
_SPARK_HOP = "window(date_time, '10 seconds', '2 seconds')"
_SPARK_TUMBLE = "window(date_time, '10 seconds')"

QUERIES: dict[str, Query] = {
    "q1": Query(
        "SELECT auction, bidder, price * 0.908E0 AS price, date_time, extra FROM bid",
        ("bid",),
        {"auction": "BIGINT", "bidder": "BIGINT", "price": "DOUBLE", "date_time": "TIME", "extra": "STRING"},
    ),
    "q4": Query(
        """
SELECT category, AVG(CAST(final AS DOUBLE)) AS average FROM (
    SELECT a.id, a.category, MAX(b.price) AS final
    FROM auction a JOIN bid b ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
    GROUP BY a.id, a.category) GROUP BY category""",
        ("auction", "bid"),
        {"category": "BIGINT", "average": "DOUBLE"},
        key=("category",),
    ),
    "q5": Query(
        f"""
SELECT auction, n, window_start FROM (
    SELECT auction, n, window_start, ROW_NUMBER() OVER (
        PARTITION BY window_start, window_end ORDER BY n DESC, auction) AS place FROM (
        SELECT auction, COUNT(*) AS n, window_start, window_end FROM {_WINDOWED_BIDS}
        GROUP BY auction, window_start, window_end)) WHERE place <= 1""",
        ("bid",),
        {"auction": "BIGINT", "n": "BIGINT", "window_start": "WINDOW"},
        spark=f"""
SELECT max_by(auction, struct(n, -auction)) AS auction, max(n) AS n, w.start AS window_start FROM (
    SELECT auction, count(*) AS n, {_SPARK_HOP} AS w FROM bid GROUP BY auction, {_SPARK_HOP}) GROUP BY w""",
    ),
    "q7": Query(
        f"""
SELECT auction, price, bidder, date_time FROM (
    SELECT auction, price, bidder, date_time, ROW_NUMBER() OVER (
        PARTITION BY window_start, window_end ORDER BY price DESC, auction, bidder, date_time) AS place
    FROM {_TUMBLING.format("bid")}) WHERE place <= 1""",
        ("bid",),
        {"auction": "BIGINT", "price": "BIGINT", "bidder": "BIGINT", "date_time": "TIME"},
        spark=f"""
SELECT best.auction, best.price, best.bidder, best.date_time FROM (
    SELECT max_by(struct(auction, price, bidder, date_time),
        struct(price, -auction, -bidder, -unix_millis(date_time))) AS best
    FROM bid GROUP BY {_SPARK_TUMBLE})""",
    ),
    "q8": Query(
        f"""
SELECT p.id, p.name, p.window_start FROM (
    SELECT id, name, window_start, window_end FROM {_TUMBLING.format("person")}
    GROUP BY id, name, window_start, window_end) p
JOIN (
    SELECT seller, window_start, window_end FROM {_TUMBLING.format("auction")}
    GROUP BY seller, window_start, window_end) a
ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end""",
        ("person", "auction"),
        {"id": "BIGINT", "name": "STRING", "window_start": "WINDOW"},
        spark=f"""
SELECT p.id, p.name, p.w.start AS window_start FROM
    (SELECT id, name, {_SPARK_TUMBLE} AS w FROM person GROUP BY id, name, {_SPARK_TUMBLE}) p
    JOIN (SELECT seller, {_SPARK_TUMBLE} AS w FROM auction GROUP BY seller, {_SPARK_TUMBLE}) a
    ON p.id = a.seller AND p.w = a.w""",
    ),
    "q18": Query(
        SQL["q18"],
        ("bid",),
        TABLES["bid"],
        key=("bidder", "auction"),
    ),
    "servers": Query(
        "SELECT server_name, COUNT(*) AS n FROM events WHERE id % 4 <> 0 GROUP BY server_name",
        ("events",),
        {"server_name": "STRING", "n": "BIGINT"},
        key=("server_name",),
    ),
}


def chosen(names: tuple[str, ...]) -> tuple[str, ...]:
    """Queries of these names; all if there are none.

    Raises:
        ConfigError: there is no such query.
    """
    for name in names:
        if name not in QUERIES:
            raise ConfigError(f"--only {name}: there are {', '.join(QUERIES)}")
    return names or tuple(QUERIES)
