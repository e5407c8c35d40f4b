-- Most of what there is, for texts with mistakes: benchmarks/sql/mangled.py.
CREATE SOURCE orders (id BIGINT NOT NULL, who VARCHAR, price DOUBLE, cents DECIMAL(12, 2), ok BOOLEAN, day DATE,
    at TIMESTAMP(3), WATERMARK FOR at AS at - INTERVAL '2' SECOND)
    WITH (connector = 'json', path = 'orders.jsonl', follow = 'true', parallelism = '2', rate = '100');
CREATE SOURCE payments (order_id BIGINT NOT NULL, amount DOUBLE, at BIGINT, WATERMARK FOR at AS at - INTERVAL '1' MINUTE)
    WITH (connector = 'kafka', topic = 'payments', bootstrap = 'localhost:9092', format = 'json', start = 'earliest');
CREATE SOURCE lines (a VARCHAR, b INT) WITH (connector = 'csv', path = 'lines.csv', null_values = 'NA,-');
CREATE TABLE customers (id BIGINT NOT NULL, name VARCHAR, level INT) WITH (connector = 'parquet', path = 'c.parquet',
    cache_rows = '1000', cache_ttl = '10m');
CREATE TABLE shops (name VARCHAR, city VARCHAR) WITH (connector = 'cassandra', keyspace = 'k', table = 'shops',
    contact_points = 'db1,db2', port = '9042', timeout = '2s');
CREATE VIEW known AS SELECT o.id, o.who, c.level, s.city, o.price, o.at FROM orders o
    JOIN customers FOR SYSTEM_TIME AS OF PROCTIME() AS c ON c.id = o.id
    LEFT JOIN shops FOR SYSTEM_TIME AS OF PROCTIME() AS s ON s.name = o.who WHERE c.level > 1;
CREATE VIEW paid AS SELECT o.id, p.amount, o.at FROM orders o
    JOIN payments p ON o.id = p.order_id AND o.price < p.amount WHERE o.ok AND EXISTS (SELECT 1 FROM lines l WHERE l.b = o.id);
CREATE VIEW daily AS SELECT who, window_start, window_end, COUNT(*) AS n, SUM(price) FILTER (WHERE ok) AS total
    FROM TUMBLE(orders, at, INTERVAL '1' DAY, 'Europe/Berlin') GROUP BY who, window_start, window_end HAVING COUNT(*) > 1;
CREATE VIEW steps AS SELECT id, price - LAG(price, 1, 0.0) OVER (PARTITION BY who ORDER BY at) AS step,
    AVG(price) OVER (PARTITION BY who ORDER BY at ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) AS of_ten FROM orders;
CREATE VIEW middle AS SELECT who, PERCENTILE_CONT(0.9) WITHIN GROUP (ORDER BY price) AS p, APPROX_QUANTILE(price, 0.5) AS q,
    MEDIAN(price) FILTER (WHERE ok) AS m FROM orders GROUP BY who;
CREATE SINK top WITH (connector = 'delta', path = 'out/top', partition_by = 'who') AS
    SELECT who, n, total, r FROM (
        SELECT *, ROW_NUMBER() OVER (PARTITION BY who ORDER BY n DESC, window_end) AS r FROM daily) WHERE r <= 3;
CREATE SINK told WITH (connector = 'print') AS WITH x AS (SELECT id, price FROM known WHERE city LIKE 'B%' OR level IN (1, 2))
    SELECT id, CAST(price AS BIGINT) AS price, CASE WHEN price > 5 THEN 'dear' ELSE NULL END AS how FROM x
    UNION ALL SELECT id, CAST(step AS BIGINT), DATE_FORMAT(TIMESTAMP '2026-01-01 00:00:00', 'yyyy-MM-dd') FROM steps;
CREATE SINK rest WITH (connector = 'blackhole');
INSERT INTO rest SELECT p.id, p.amount, m.p, m.q FROM paid p JOIN orders o ON o.id = p.id JOIN middle m ON m.who = o.who;
