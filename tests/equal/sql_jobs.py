"""Queries of SQL, each a job: their steps are those of the others, and some that SQL alone has."""

from pathlib import Path

import weir
from tests.equal.job_form import Job

LEVELS = weir.FileTable(
    str(Path(__file__).with_name("levels.csv")), schema={"k": int, "name": weir.Nullable(str)}, format="csv"
)
#: The text, and how it is compared.
TEXTS = {
    "sql_over": (
        'SELECT k, v, "to" - LAG("to", 1, 0) OVER (PARTITION BY k ORDER BY at, v) AS step, SUM(v) OVER (PARTITION BY k '
        "ORDER BY at, v ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS three, MAX(v) OVER (PARTITION BY k ORDER BY at "
        "RANGE BETWEEN INTERVAL '3' SECOND PRECEDING AND CURRENT ROW) AS most FROM l",
        "rows",
    ),
    "sql_lookup": (
        "SELECT l.k, l.v, c.name FROM l LEFT JOIN levels FOR SYSTEM_TIME AS OF PROCTIME() AS c ON c.k = l.k",
        "rows",
    ),
    "sql_days": (
        "SELECT k, window_start, COUNT(*) AS n, SUM(v) AS total FROM TUMBLE(l, at, INTERVAL '1' DAY, 'Asia/Kolkata') "
        "GROUP BY k, window_start",
        "rows",
    ),
    "sql_percentiles": (
        "SELECT k, MEDIAN(v) AS middle, APPROX_QUANTILE(v, 0.9) AS high, COUNT(*) AS n FROM l GROUP BY k",
        "folded",
    ),
    "sql_exists": (
        "SELECT k, v FROM l WHERE EXISTS (SELECT 1 FROM r WHERE r.k = l.k AND r.at BETWEEN l.at AND l.at + "
        "INTERVAL '2' SECOND) AND v % 3 <> 0",
        "rows",
    ),
}


def query(text, compare):
    """A job of ``TEXTS``."""

    def last_step(s, name):
        read = {"l": s.left} | ({"r": s.right} if " r " in text else {})
        tables = {"levels": LEVELS} if "levels" in text else {}
        made = s.left.flow.sql(text, step=f"{name}_of", **read, **tables)
        return made.select(name, *made.schema.names)

    return Job(last_step, compare=compare)


JOBS = {name: query(*settings) for name, settings in TEXTS.items()}
