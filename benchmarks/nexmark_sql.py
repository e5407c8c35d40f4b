"""The Nexmark queries as batch queries of Spark SQL, from what event time says and not from how Weir does it.

The views are ``person``, ``auction`` and ``bid``; ``date_time`` is in ms since 1970, UTC. Windows are spelled out as
arithmetic on it, sessions as gaps between neighbours.
"""

from __future__ import annotations

#: Bids with the auction that they are for, while it was open.
_VALID = """
    SELECT a.id, a.item_name, a.description, a.initial_bid, a.reserve, a.date_time, a.expires, a.seller, a.category,
        b.auction, b.bidder, b.price, b.date_time AS bid_time, b.extra AS bid_extra
    FROM auction a JOIN bid b ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires"""

_STATISTICS = """
    count(*) AS total_bids,
    count_if(price < 10000) AS rank1_bids,
    count_if(price >= 10000 AND price < 1000000) AS rank2_bids,
    count_if(price >= 1000000) AS rank3_bids,
    count(DISTINCT bidder) AS total_bidders,
    count(DISTINCT CASE WHEN price < 10000 THEN bidder END) AS rank1_bidders,
    count(DISTINCT CASE WHEN price >= 10000 AND price < 1000000 THEN bidder END) AS rank2_bidders,
    count(DISTINCT CASE WHEN price >= 1000000 THEN bidder END) AS rank3_bidders,
    count(DISTINCT auction) AS total_auctions,
    count(DISTINCT CASE WHEN price < 10000 THEN auction END) AS rank1_auctions,
    count(DISTINCT CASE WHEN price >= 10000 AND price < 1000000 THEN auction END) AS rank2_auctions,
    count(DISTINCT CASE WHEN price >= 1000000 THEN auction END) AS rank3_auctions"""

SQL = {
    "q0": "SELECT auction, bidder, price, date_time, extra FROM bid",
    "q1": "SELECT auction, bidder, price * 0.908D AS price, date_time, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """
        SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q4": f"""
        SELECT category, avg(final) AS average FROM (
            SELECT id, category, max(price) AS final FROM ({_VALID}) GROUP BY id, category) GROUP BY category""",
    "q5": """
        SELECT auction, n, window_start FROM (
            SELECT *, rank() OVER (PARTITION BY window_start ORDER BY n DESC) AS place FROM (
                SELECT auction, count(*) AS n, window_start FROM (
                    SELECT auction, explode(sequence(
                        date_time - date_time % 2000 - 8000, date_time - date_time % 2000, 2000)) AS window_start
                    FROM bid) GROUP BY auction, window_start)) WHERE place = 1""",
    "q6": f"""
        SELECT seller, avg(price) AS average FROM (
            SELECT *, row_number() OVER (PARTITION BY seller ORDER BY bid_time DESC) AS recent FROM (
                SELECT *, row_number() OVER (PARTITION BY id ORDER BY price DESC, bid_time) AS place FROM ({_VALID}))
            WHERE place = 1) WHERE recent <= 10 GROUP BY seller""",
    "q7": """
        SELECT auction, price, bidder, date_time FROM (
            SELECT *, rank() OVER (PARTITION BY date_time - date_time % 10000 ORDER BY price DESC) AS place FROM bid)
        WHERE place = 1""",
    "q8": """
        SELECT p.id, p.name, p.window_start FROM
            (SELECT DISTINCT id, name, date_time - date_time % 10000 AS window_start FROM person) p JOIN
            (SELECT DISTINCT seller, date_time - date_time % 10000 AS window_start FROM auction) a
            ON p.id = a.seller AND p.window_start = a.window_start""",
    "q9": f"""
        SELECT id, item_name, description, initial_bid, reserve, date_time, expires, seller, category, bidder, price,
            bid_time, bid_extra FROM (
            SELECT *, row_number() OVER (PARTITION BY id ORDER BY price DESC, bid_time) AS place FROM ({_VALID}))
        WHERE place = 1""",
    "q10": """
        SELECT auction, bidder, price, date_time, extra, date_format(timestamp_millis(date_time), 'yyyy-MM-dd') AS dt,
            date_format(timestamp_millis(date_time), 'HH:mm') AS hm FROM bid""",
    # Sessions that touch are one: a bid belongs to the session that it follows by exactly the gap.
    "q11": """
        SELECT bidder, count(*) AS bid_count, min(date_time) AS window_start, max(date_time) + 10000 AS window_end
        FROM (
            SELECT bidder, date_time, sum(begins) OVER (PARTITION BY bidder ORDER BY date_time) AS session FROM (
                SELECT bidder, date_time, CASE WHEN date_time - lag(date_time) OVER (
                    PARTITION BY bidder ORDER BY date_time) <= 10000 THEN 0 ELSE 1 END AS begins FROM bid))
        GROUP BY bidder, session""",
    # Which window of the clock a bid falls into nobody can tell: the totals are compared.
    "q12": "SELECT bidder, count(*) AS bid_count FROM bid GROUP BY bidder",
    "q13": """
        SELECT auction, bidder, price, date_time, concat('item ', auction % 10000) AS value FROM bid""",
    "q14": """
        SELECT auction, bidder, price * 0.908D AS price,
            CASE WHEN hour(timestamp_millis(date_time)) BETWEEN 8 AND 18 THEN 'dayTime'
                 WHEN hour(timestamp_millis(date_time)) <= 6 OR hour(timestamp_millis(date_time)) >= 20 THEN 'nightTime'
                 ELSE 'otherTime' END AS bid_time_type,
            date_time, extra, CAST(length(extra) - length(replace(extra, 'c', '')) AS BIGINT) AS c_counts
        FROM bid WHERE price * 0.908D > 1000000 AND price * 0.908D < 50000000""",
    "q15": f"""
        SELECT date_format(timestamp_millis(date_time), 'yyyy-MM-dd') AS day, {_STATISTICS}
        FROM bid GROUP BY date_format(timestamp_millis(date_time), 'yyyy-MM-dd')""",
    "q16": f"""
        SELECT channel, date_format(timestamp_millis(date_time), 'yyyy-MM-dd') AS day,
            max(date_format(timestamp_millis(date_time), 'HH:mm')) AS minute, {_STATISTICS}
        FROM bid GROUP BY channel, date_format(timestamp_millis(date_time), 'yyyy-MM-dd')""",
    "q17": """
        SELECT auction, date_format(timestamp_millis(date_time), 'yyyy-MM-dd') AS day,
            count(*) AS total_bids,
            count_if(price < 10000) AS rank1_bids,
            count_if(price >= 10000 AND price < 1000000) AS rank2_bids,
            count_if(price >= 1000000) AS rank3_bids,
            min(price) AS min_price, max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price
        FROM bid GROUP BY auction, date_format(timestamp_millis(date_time), 'yyyy-MM-dd')""",
    "q18": """
        SELECT auction, bidder, price, channel, url, date_time, extra FROM (
            SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC) AS place FROM bid)
        WHERE place = 1""",
    "q19": """
        SELECT auction, bidder, price, channel, date_time, extra, place FROM (
            SELECT *, CAST(row_number() OVER (PARTITION BY auction ORDER BY price DESC, date_time) AS BIGINT) AS place
            FROM bid) WHERE place <= 10""",
    "q20": """
        SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.date_time, b.extra,
            a.item_name, a.description, a.initial_bid, a.reserve, a.date_time AS date_time_right, a.expires, a.seller,
            a.category, a.extra AS extra_right
        FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10""",
    "q21": """
        SELECT * FROM (
            SELECT auction, bidder, price, channel,
                CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2'
                    WHEN 'baidu' THEN '3'
                    ELSE nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '') END AS channel_id
            FROM bid) WHERE channel_id IS NOT NULL""",
    "q22": """
        SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
            split_part(url, '/', 6) AS dir3 FROM bid""",
}
