"""The Nexmark queries in Weir's SQL, over streams ``bid``, ``auction`` and ``person``."""

from __future__ import annotations

from benchmarks.nexmark_sql import SQL

_VALID = """
    SELECT a.id, a.item_name, a.description, a.initial_bid, a.reserve, a.date_time, a.expires, a.seller, a.category,
        b.bidder, b.price, b.date_time AS bid_time, b.extra AS bid_extra
    FROM auction a JOIN bid b ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires"""

_STATISTICS = """
    COUNT(*) AS total_bids,
    COUNT(*) FILTER (WHERE price < 10000) AS rank1_bids,
    COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
    COUNT(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
    COUNT(DISTINCT bidder) AS total_bidders,
    COUNT(DISTINCT bidder) FILTER (WHERE price < 10000) AS rank1_bidders,
    COUNT(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bidders,
    COUNT(DISTINCT bidder) FILTER (WHERE price >= 1000000) AS rank3_bidders,
    COUNT(DISTINCT auction) AS total_auctions,
    COUNT(DISTINCT auction) FILTER (WHERE price < 10000) AS rank1_auctions,
    COUNT(DISTINCT auction) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_auctions,
    COUNT(DISTINCT auction) FILTER (WHERE price >= 1000000) AS rank3_auctions"""

_DAY = "DATE_FORMAT(TIMESTAMP_MILLIS(window_start), 'yyyy-MM-dd')"

#: One text on both engines.
_SAME = ("q0", "q2", "q3", "q10", "q18", "q20", "q21", "q22")

TEXTS = {
    **{query: SQL[query] for query in _SAME},
    "q1": "SELECT auction, bidder, price * 0.908 AS price, date_time, extra FROM bid",
    "q4": f"""
        SELECT category, AVG(final) AS average FROM (
            SELECT id, category, MAX(price) AS final FROM ({_VALID}) GROUP BY id, category) GROUP BY category""",
    "q5": """
        SELECT auction, n, window_start FROM (
            SELECT auction, n, window_start, RANK() OVER (PARTITION BY window_start ORDER BY n DESC) AS place FROM (
                SELECT auction, COUNT(*) AS n, window_start
                FROM HOP(bid, date_time, INTERVAL '2' SECOND, INTERVAL '10' SECOND)
                GROUP BY auction, window_start, window_end)) WHERE place = 1""",
    "q6": f"""
        SELECT seller, AVG(price) AS average FROM (
            SELECT seller, price, ROW_NUMBER() OVER (PARTITION BY seller ORDER BY bid_time DESC) AS recent FROM (
                SELECT seller, price, bid_time, ROW_NUMBER() OVER (
                    PARTITION BY id ORDER BY price * 4294967296 - (bid_time - date_time) DESC) AS place
                FROM ({_VALID}))
            WHERE place = 1) WHERE recent <= 10 GROUP BY seller""",
    "q7": """
        SELECT auction, price, bidder, date_time FROM (
            SELECT auction, price, bidder, date_time,
                RANK() OVER (PARTITION BY window_start, window_end ORDER BY price DESC) AS place
            FROM TUMBLE(bid, date_time, INTERVAL '10' SECOND)) WHERE place = 1""",
    "q8": """
        SELECT p.id, p.name, p.window_start FROM (
            SELECT id, name, window_start, window_end FROM TUMBLE(person, date_time, INTERVAL '10' SECOND)
            GROUP BY id, name, window_start, window_end) p
        JOIN (
            SELECT seller, window_start, window_end FROM TUMBLE(auction, date_time, INTERVAL '10' SECOND)
            GROUP BY seller, window_start, window_end) a
        ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end""",
    "q9": f"""
        SELECT id, item_name, description, initial_bid, reserve, date_time, expires, seller, category, bidder, price,
            bid_time, bid_extra FROM (
            SELECT *, ROW_NUMBER() OVER (
                PARTITION BY id ORDER BY price * 4294967296 - (bid_time - date_time) DESC) AS place FROM ({_VALID}))
        WHERE place = 1""",
    "q11": """
        SELECT bidder, COUNT(*) AS bid_count, window_start, window_end
        FROM SESSION(bid, date_time, INTERVAL '10' SECOND) GROUP BY bidder, window_start, window_end""",
    "q12": """
        SELECT bidder, COUNT(*) AS bid_count, window_start, window_end
        FROM TUMBLE(bid, PROCTIME(), INTERVAL '10' SECOND) GROUP BY bidder, window_start, window_end""",
    "q13": "SELECT auction, bidder, price, date_time, item_of(auction) AS value FROM bid",
    "q14": """
        SELECT auction, bidder, euros AS price,
            CASE WHEN hour BETWEEN 8 AND 18 THEN 'dayTime' WHEN hour <= 6 OR hour >= 20 THEN 'nightTime'
                 ELSE 'otherTime' END AS bid_time_type,
            date_time, extra, LENGTH(extra) - LENGTH(REPLACE(extra, 'c', '')) AS c_counts
        FROM (SELECT *, price * 0.908 AS euros, EXTRACT(HOUR FROM TIMESTAMP_MILLIS(date_time)) AS hour FROM bid)
        WHERE euros > 1000000 AND euros < 50000000""",
    "q15": f"""
        SELECT {_DAY} AS day, {_STATISTICS}
        FROM TUMBLE(bid, date_time, INTERVAL '1' DAY) GROUP BY window_start, window_end""",
    "q16": f"""
        SELECT channel, {_DAY} AS day,
            DATE_FORMAT(TIMESTAMP_MILLIS(MAX(date_time)), 'HH:mm') AS minute, {_STATISTICS}
        FROM TUMBLE(bid, date_time, INTERVAL '1' DAY) GROUP BY channel, window_start, window_end""",
    "q17": f"""
        SELECT auction, {_DAY} AS day,
            COUNT(*) AS total_bids,
            COUNT(*) FILTER (WHERE price < 10000) AS rank1_bids,
            COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
            COUNT(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
            MIN(price) AS min_price, MAX(price) AS max_price, AVG(price) AS avg_price, SUM(price) AS sum_price
        FROM TUMBLE(bid, date_time, INTERVAL '1' DAY) GROUP BY auction, window_start, window_end""",
    "q19": """
        SELECT auction, bidder, price, channel, date_time, extra, place FROM (
            SELECT auction, bidder, price, channel, date_time, extra,
                ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS place FROM bid) WHERE place <= 10""",
}
