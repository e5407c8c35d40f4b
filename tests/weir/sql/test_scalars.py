"""Scalar expressions over values that engines differ about, beside DuckDB; what DuckDB has not, with the result."""

import datetime as dt
from decimal import Decimal

import duckdb
import polars as pl
import pytest

from weir.sql.errors import Place, Unplaced
from weir.sql.relations import Column, Scope
from weir.sql.scalars import scalar
from weir.sql.text import parse_query, tokens_of
from weir.sql.types import column

ROWS = pl.DataFrame(
    {
        "s": ["äbc", "abc", None, "", "a,b,c", " x ", "y"],
        "p": ["b", "", None, "ab", ",", None, "y"],
        "n": [2, 1, None, 0, None, 3, 1],
        "i": pl.Series([-128, 1, None, 0, 127, 5, 2], dtype=pl.Int8),
        "d": [1.5, -2.5, None, float("nan"), float("inf"), -0.0, 2.0],
        "big": [-(1 << 63), (1 << 63) - 1, None, (1 << 53) + 1, -(1 << 53) - 1, 7, 8],
        "day": [
            dt.date(2020, 1, 31),
            dt.date(1969, 12, 31),
            None,
            dt.date(2020, 2, 29),
            *[dt.date(1900, 1, 1)] * 3,
        ],
        "m": pl.Series(
            [Decimal("1.25"), Decimal("-1.25"), None, Decimal("99.99"), *[Decimal("0.05")] * 3]
        ).cast(pl.Decimal(10, 2)),
        "b": [True, False, None, True, False, True, None],
        # A number where n is none.
        "q": ["x", "x", "7", "x", None, "x", "x"],
    }
)
_SCOPE = Scope([Column(name, column(name, dtype)) for name, dtype in ROWS.schema.items()])

AS_IN_DUCKDB = """
d / 5
d / 0.3e0
n / 10.0e0
7.0e0 / NULLIF(d, 0)
7.0e0 / 5
d % 2
(d / 5) % 0.1e0
d % 0.1e0
(d * 0.2e0) % 0.1e0
(d * 1e19) % 3
5.5e0 % NULLIF(d, 0)
big % 0.7e0
d % NULL
POSITION('c' IN s)
POSITION(p IN s)
POSITION('' IN s)
SUBSTRING(s, NULL)
SUBSTRING(s, n)
SUBSTRING(s, 1, n)
LEFT(s, n)
RIGHT(s, n)
RIGHT(s, NULL)
SPLIT_PART(s, ',', n)
SPLIT_PART(s, p, 1)
SPLIT_PART('ab', p, 1)
SPLIT_PART('ab', p, -1)
SPLIT_PART(s, NULL, 1)
SPLIT_PART(s, ',', 0)
SPLIT_PART(s, ',', 100000000)
REPLACE(s, p, 'X')
REPLACE(s, 'b', p)
REPLACE(s, '', 'X')
REPLACE('ab', 'b', s)
REPLACE('ab', s, 'X')
REPLACE(s, 'b', NULLIF('x', 'x'))
REPLACE('ab', 'b', 'c')
REPLACE(s, NULL, 'X')
REGEXP_EXTRACT(s, p)
SIGN(d)
GREATEST(d, 1.0)
LEAST(d, 1.0)
GREATEST(n, 1, NULL)
EXTRACT(HOUR FROM day)
MINUTE(day)
ROUND(big)
ROUND(d, 1)
ABS(NULL)
-9223372036854775808
COALESCE(n, CAST(q AS BIGINT))
CAST('true' AS BOOLEAN)
TRY_CAST(s AS BOOLEAN)
TRY_CAST(s AS DECIMAL(10, 2))
CAST('1.005' AS DECIMAL(5, 2))
CAST('-1.005' AS DECIMAL(5, 2))
CAST(m AS DECIMAL(5, 1))
m + m
n = 1 AND b OR n = 2 AND NOT b OR n IS NULL
n IN (1, 2.5, NULL)
b AND NULL
b OR NULL
NULLIF(-4, NULLIF(0, big))
-4 < COALESCE(0, n)
0 >= COALESCE(0, n)
1 IS DISTINCT FROM COALESCE(0, n)
1 IN (COALESCE(0, n), n)
d > 1 AND d = d
n = 1 AND s IS NULL OR (n = 2) IS TRUE OR CASE WHEN n = 3 THEN b END IS NULL
REGEXP_LIKE(s, '^\\w')
REGEXP_LIKE(s, '^\\W')
REGEXP_LIKE(s, '^[\\w,]+$')
REGEXP_LIKE(s, '^[^\\W]')
REGEXP_LIKE(s, '\\bbc')
REGEXP_LIKE(s, '[,[]')
REGEXP_LIKE(s, '[]a&&y]')
REGEXP_LIKE('<', '\\<')
REGEXP_LIKE('\u0664', '\\d')
REGEXP_LIKE('\u00a0', '[\\s]')
REGEXP_LIKE('\u212a', '(?i)\\w')
REGEXP_LIKE('\u212a', '(?i)\\W')
REGEXP_LIKE('\u212a', '(?i)[\\w-]')
REGEXP_LIKE('\u212a', '(?i)[^\\w]')
REGEXP_LIKE(s, p || '\\w*$')
REGEXP_EXTRACT(s, '\\w+')
REGEXP_EXTRACT(s, '[^\\d\\s]+')
s ILIKE 'ÄB_'
'\u212a' ILIKE 'k'
'\u017f' ILIKE 's'
CAST(ROUND(CAST('1.005' AS DECIMAL(5, 3)), 2) AS DOUBLE)
CAST(ROUND(m, 1) AS DOUBLE)
POWER(-d, 0.5e0)
TRIM(s, p)
TRIM(s, NULL)
-NULL
CAST(CAST('10:11:12.5' AS TIME) AS VARCHAR)
DATE_TRUNC('second', CAST('2020-01-01 10:11:12.789' AS TIMESTAMP)) = CAST('2020-01-01 10:11:12' AS TIMESTAMP)
STRFTIME(day + INTERVAL '1500' MILLISECOND, '%H:%M:%S.%f %j %-d %a %b %p %U %V')
""".strip().splitlines()


def value(text):
    query = f"SELECT {text}"
    [wanted] = parse_query(tokens_of(Place("q", query), query), query).expressions
    return scalar(wanted, _SCOPE)


def computed(text):
    found = value(text)
    made = ROWS.with_columns(found.expr.alias("x"))["x"]
    assert made.dtype == found.dtype, "a later step counts on the type"
    return made.to_list()


def test_it_is_as_in_duckdb():
    others = []
    with duckdb.connect() as judge:
        judge.register("t", ROWS.to_arrow())
        judge.execute("CREATE MACRO regexp_like(words, pattern) AS regexp_matches(words, pattern)")
        for text in AS_IN_DUCKDB:
            wanted = [row[0] for row in judge.execute(f"SELECT {text} FROM t").fetchall()]
            found = computed(text)
            if list(map(repr, found)) != list(map(repr, wanted)):
                others.append((text, found, wanted))
    assert others == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # All whole numbers are computed as BIGINT.
        ("-i", [128, -1, None, 0, -127, -5, -2]),
        ("ABS(i)", [128, 1, None, 0, 127, 5, 2]),
        ("big + 1", [-(1 << 63) + 1, -(1 << 63), None, (1 << 53) + 2, -(1 << 53), 8, 9]),
        ("CEIL(big)", ROWS["big"].to_list()),
        ("FLOOR(big)", ROWS["big"].to_list()),
        ("SUBSTRING(s, 2, 9223372036854775807)", ["bc", "bc", None, "", ",b,c", "x ", ""]),
        (
            "EXTRACT(SECOND FROM CAST(day + INTERVAL '9999' MILLISECOND AS TIMESTAMP(0)))",
            [9, 9, None, *[9] * 4],
        ),
        (
            "CAST(CAST(day + INTERVAL '9999' MILLISECOND AS TIMESTAMP(1)) AS VARCHAR)",
            ["2020-01-31 00:00:09.9", "1969-12-31 00:00:09.9", None, "2020-02-29 00:00:09.9"]
            + ["1900-01-01 00:00:09.9"] * 3,
        ),
        ("RIGHT(s, big)", ["", "abc", None, "", "", " x ", "y"]),
        (
            "DATE_FORMAT(day + INTERVAL '1250' MILLISECOND, 'yyMMdd SSSSSS')",
            ["200131 250000", "691231 250000", None, "200229 250000", *["000101 250000"] * 3],
        ),
        ("DATE_FORMAT(day, 'yyyy HH')", ["2020 00", "1969 00", None, "2020 00", *["1900 00"] * 3]),
    ],
)
def test_it_is_as_the_page_says(text, expected):
    assert computed(text) == expected


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2020-01-01T00:00:00.5Z", dt.datetime(2020, 1, 1, 0, 0, 0, 500_000, dt.UTC)),
        ("2020-01-01 00:00:00+02", dt.datetime(2019, 12, 31, 22, tzinfo=dt.UTC)),
        ("2020-01-01 00:00:00-02:30", dt.datetime(2020, 1, 1, 2, 30, tzinfo=dt.UTC)),
        ("2020-01-01", dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
    ],
)
def test_a_text_says_how_far_its_time_is_from_utc(text, moment):
    assert computed(f"CAST('{text}' AS TIMESTAMPTZ)") == [moment] * ROWS.height


@pytest.mark.parametrize(
    ("told", "moment", "zone"),
    [
        # The results are those of DuckDB, whose Python client needs a further package for such values.
        ("2020-07-01 00:00:00", "2020-06-30 22:00:00", "Europe/Berlin"),
        ("2020-10-25 02:30:00", "2020-10-25 01:30:00", "Europe/Berlin"),
        ("2020-03-29 02:59:59", "2020-03-29 01:59:59", "Europe/Berlin"),
        ("2020-10-04 02:15:00", "2020-10-03 15:45:00", "Australia/Lord_Howe"),
        ("1880-01-01 00:00:00", "1879-12-31 23:06:32", "Europe/Berlin"),
    ],
)
def test_times_are_those_of_a_zones_clocks(told, moment, zone):
    [found, *_] = computed(f"TIMESTAMP '{told}' AT TIME ZONE '{zone}'")
    assert str(found) == f"{moment}+00:00"
    [back, *_] = computed(f"CAST('{moment}' AS TIMESTAMPTZ) AT TIME ZONE '{zone}'")
    # An hour that clocks leave out is never told.
    assert back.isoformat(" ") == told or back - dt.timedelta(minutes=30) >= dt.datetime.fromisoformat(told)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("REGEXP_LIKE(s, '[')", "'[' is no regular expression: unclosed character class"),
        ("REGEXP_EXTRACT(s, '(?=b)')", "look-around"),
        ("DATE_FORMAT(day, '%Q')", "no time can be told in the form '%Q'"),
        ("DATE_FORMAT(day, 'yyyy MMMM')", "has 'MMMM'; there are yyyy"),
        ("DATE_FORMAT(day, 'SSSS')", "has 'SSSS'"),
        ("STRFTIME(day, '%Y %g')", "'%g'; there are %%, %Y"),
        ("d DIV 2", "DIV is of whole numbers"),
        ("REGEXP_LIKE(s, '[a--c]')", "write \\-"),
        ("day + INTERVAL '999999999999' WEEK", "longer than 10,000 years"),
        ("big + INTERVAL '999999999999' MONTH", "longer than 10,000 years"),
        ("day - day", "take EPOCH_MS(...) of times"),
        ("n AT TIME ZONE 'UTC'", "AT TIME ZONE is of times, and this is BIGINT"),
        ("day AT TIME ZONE 'Europe/Berln'", "did you mean 'Europe/Berlin'?"),
        ("n & 1", "n & 1 is not there"),
        ("LPAD(s, 3, 'x')", "there is no function LPAD"),
        ("DATE_PART('year', day)", "write EXTRACT(YEAR FROM t)"),
        ("9223372036854775808", "is beyond BIGINT"),
    ],
)
def test_it_is_refused_when_the_text_is_read(text, message):
    with pytest.raises(Unplaced) as refused:
        value(text)
    assert message in refused.value.message


def test_thousands_of_conditions_are_no_deep_expression():
    words = " AND ".join(["n = 1"] * 3_000)
    assert computed(words) == [each if each is None else each == 1 for each in ROWS["n"].to_list()]
