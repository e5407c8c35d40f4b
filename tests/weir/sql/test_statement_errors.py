"""Errors of statements of SQL: one line with file, line, column, and what was meant."""

from tests.weir.sql.texts import SINK, error_of

WRONG_STATEMENTS = [
    ("", "1:1: the text has no sink"),
    ("CREATE SORCE t", "1:1: there is no statement CREATE SORCE; did you mean 'CREATE SOURCE'?"),
    ("SELECT 1", "1:1: a query alone writes nothing"),
    ("EXPLAIN SELECT 1", "1:1: EXPLAIN is of the prompt (weir sql); weir plan FILE shows"),
    (
        "CREATE SOURCE t (id BIGINT) WITH (connector = 'jsn')",
        "1:35: there is no connector 'jsn' of a source; did you",
    ),
    # No query looks these tables up.
    (
        "CREATE TABLE t (id BIGINT) WITH (connector = 'csv', path = 'x', cache_ttl = '10 potatoes')",
        "1:65: cache_ttl is '10 potatoes'; write a duration such as '250ms', '90s', '1h30m' or '7d'",
    ),
    (
        "CREATE TABLE t (id BIGINT) WITH (connector = 'csv', path = 'x', cache_rows = '-5')",
        "1:65: cache_rows is '-5'; it must be a whole number from 0 to 100,000,000",
    ),
    ("SELEC id FROM t", "1:1: there is no statement SELEC id; did you mean 'SELECT'?"),
    (
        "CREATE SOURCE t (at BIGINT, WATERMRK FOR at AS at) WITH (connector = 'json', path = 'x')",
        "1:29: WATERMRK FOR is no column; did you mean 'WATERMARK'?",
    ),
    ("CREATE TABLE t (id BIGINT) WITH (connector = 'kafka')", "there is no connector 'kafka' of a table"),
    (
        "CREATE TABLE t (id BIGINT) WITH (connector = 'csv', path = 'x', cache_row = '1')",
        "no setting 'cache_row'; did you mean 'cache_rows'",
    ),
    (
        "CREATE TABLE t (id BIGINT, WATERMARK FOR id AS id) WITH (connector = 'csv')",
        "without a WATERMARK",
    ),
    (
        "CREATE TABLE t (PRIMARY KEY (id), id BIGINT) WITH (connector = 'csv')",
        "by which columns rows are found",
    ),
    (
        "CREATE SOURCE t (id BIGINT) WITH (connector = 'json', path = 'x', parallelism = '²')",
        "a whole number",
    ),
    (
        "CREATE SOURCE t (id BIGINT) WITH (connector = 'json', pth = 'x')",
        "1:55: connector 'json' has no setting 'pth'",
    ),
    (
        "CREATE SOURCE t (at BIGINT, WATERMARK FOR at AS at) WITH (connector = 'json', path = 'x', max_drift = 'far')",
        "1:91: max_drift is 'far'; write a duration such as '90s', '10m' or '7d'",
    ),
    (
        "CREATE SOURCE t (at BIGINT) WITH (connector = 'json', path = 'x', max_drift = '10m')",
        "1:67: max_drift needs WATERMARK FOR among the columns",
    ),
    (
        "CREATE SOURCE t (at BIGINT) WITH (connector = 'json', path = 'x', max_drft = '10m')",
        "no setting 'max_drft'; did you mean 'max_drift'?",
    ),
    ("CREATE SOURCE t (id BIGINT) WITH (connector = 'json')", "needs path = '...'"),
    (
        "CREATE SOURCE t (id BIGINT) WITH (connector = 'json' path = 'x')",
        "1:54: a comma is missing before 'path'",
    ),
    (
        "CREATE SOURCE t (id BIGINT, WATERMARK FOR ad AS ad) WITH (connector = 'json', path = 'x')",
        "no such column",
    ),
    ("CREATE SOURCE t (id BIGIN) WITH (connector = 'json', path = 'x')", "1:21:"),
    ("CREATE VIEW v AS SELECT * FROM v", "1:32: 'v' reads itself"),
    ("CREATE SINK o WITH (connector = 'print') AS SELECT 'a", "a quote is open here"),
    (
        f"CREATE SINK o WITH (connector = 'print') AS SELECT {'9' * 5_000}",
        "1:52: a number of 5,000 characters is too long",
    ),
]


def test_statements_are_told_with_their_place():
    others = []
    for text, words in WRONG_STATEMENTS:
        read = "v" if "VIEW" in text else "t"
        is_whole = "SINK" in text or "CREATE" not in text
        told = error_of(text if is_whole else f"{text};\n{SINK}SELECT * FROM {read};")
        if words not in told:
            others.append((text[:200], words, told))
    assert others == []
