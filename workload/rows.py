"""The event schemas: which columns a row has, and how a JSON line is put together from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workload.columns import ROW, hashed, random_text, uniform_fraction, uniform_integer, zipf_integer
from workload.parameters import Distribution, Schema, WorkloadParameters

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: (wiki, server name, share of the events in percent): the order of magnitude of the live stream.
WIKIS = (
    ("wikidatawiki", "www.wikidata.org", 40),
    ("enwiki", "en.wikipedia.org", 22),
    ("commonswiki", "commons.wikimedia.org", 20),
    ("frwiki", "fr.wikipedia.org", 4),
    ("dewiki", "de.wikipedia.org", 4),
    ("ruwiki", "ru.wikipedia.org", 3),
    ("jawiki", "ja.wikipedia.org", 3),
    ("eswiki", "es.wikipedia.org", 2),
    ("enwiktionary", "en.wiktionary.org", 2),
)
#: Share of the pages that are categories, in percent; their changes are all of type ``categorize``.
CATEGORY_PERCENT = 28
#: (type, share in percent) of the changes to other pages.
CHANGE_TYPES = (("edit", 86), ("log", 8), ("new", 6))
#: Identifiers of recent changes are large on the live stream; rows count up from here.
FIRST_CHANGE_ID = 1_500_000_000
_USERS = 50_000


def events(rows: DataFrame, parameters: WorkloadParameters) -> DataFrame:
    """Turn row numbers into events.

    Args:
        rows: One column ``row`` (long): the row numbers.
        parameters: The workload.

    Returns:
        One row per event, in the same order and partitions, with the columns of the schema.
    """
    if parameters.schema is Schema.WIKIPEDIA:
        return _wikipedia_events(rows, parameters)
    from pyspark.sql import functions as f

    columns = [
        uniform_integer(parameters.seed, "id", 100).alias("id"),
        f.concat(f.lit("server-"), _key(parameters).cast("string")).alias("server_name"),
    ]
    return rows.select(*columns, *_optional_columns(parameters))


def json_lines(event_rows: DataFrame, parameters: WorkloadParameters) -> DataFrame:
    """Turn events into one text column ``value``: the JSON lines, without line ends.

    The ``server`` line is put together by hand, with the spaces of Python's ``json.dumps``: exactly
    ``{"id": 7, "server_name": "server-123"}``. None of its values needs escaping.
    """
    from pyspark.sql import functions as f

    if parameters.schema is Schema.WIKIPEDIA:
        return event_rows.select(f.to_json(f.struct("*")).alias("value"))
    pieces: list[Column] = [f.lit('{"id": '), f.col("id"), f.lit(', "server_name": "'), f.col("server_name")]
    pieces.append(f.lit('"'))
    if parameters.has_event_time:
        pieces += [f.lit(', "event_time": '), f.col("event_time")]
    if parameters.payload_bytes:
        pieces += [f.lit(', "payload": "'), f.col("payload"), f.lit('"')]
    return event_rows.select(f.concat(*pieces, f.lit("}")).alias("value"))


def _key(parameters: WorkloadParameters) -> Column:
    """Return the key number, 1..keys; under Zipf key 1 is the most frequent."""
    if parameters.distribution is Distribution.ZIPF:
        return zipf_integer(parameters.seed, "key", parameters.keys, parameters.exponent)
    return uniform_integer(parameters.seed, "key", parameters.keys)


def _event_time_ms(parameters: WorkloadParameters) -> Column:
    """Return the event time (long, ms since epoch): spaced by the rate, then set back by the disorder."""
    from pyspark.sql import functions as f

    on_time = f.lit(parameters.start_ms) + f.floor(f.col(ROW) * f.lit(1000.0 / parameters.event_rate))
    if not parameters.disorder_ms:
        return on_time.cast("long")
    behind = uniform_integer(parameters.seed, "disorder", parameters.disorder_ms + 1) - 1
    return (on_time - behind).cast("long")


def _optional_columns(parameters: WorkloadParameters) -> list[Column]:
    columns = []
    if parameters.has_event_time:
        columns.append(_event_time_ms(parameters).alias("event_time"))
    if parameters.payload_bytes:
        columns.append(random_text(parameters.seed, "payload", parameters.payload_bytes).alias("payload"))
    return columns


def _wikipedia_events(rows: DataFrame, parameters: WorkloadParameters) -> DataFrame:
    """Return events of the shape of Wikimedia's ``mediawiki/recentchange`` 1.0.0.

    A page is a key: its number follows the distribution and decides title and wiki, so there are at most
    ``keys`` distinct titles. ``minor``, ``length`` and ``revision`` are there for edits and new pages only.
    """
    from pyspark.sql import functions as f

    seed = parameters.seed
    drafts = rows.select(
        ROW,
        _key(parameters).alias("page"),
        _event_time_ms(parameters).alias("time_ms"),
        uniform_integer(seed, "user", _USERS).alias("user_number"),
        (uniform_integer(seed, "old length", 200_000) - 1).alias("old_length"),
        (uniform_integer(seed, "change", 4_001) - 2_001).alias("change"),
        _pick(uniform_integer(seed, "type", 100), CHANGE_TYPES).alias("page_change"),
    ).withColumns({"share": _page_percent(seed, "wiki"), "category_share": _page_percent(seed, "category")})
    is_category = f.col("category_share") <= CATEGORY_PERCENT
    drafts = drafts.withColumn("type", f.when(is_category, "categorize").otherwise(f.col("page_change")))
    drafts = drafts.withColumns(
        {
            "wiki": _pick(f.col("share"), [(wiki, share) for wiki, _, share in WIKIS]),
            "server_name": _pick(f.col("share"), [(server, share) for _, server, share in WIKIS]),
            "title": _title(),
            "is_edit": f.col("type").isin("edit", "new"),
        }
    )
    return drafts.select(*_change_columns(parameters), *_optional_columns(parameters))


def _page_percent(seed: int, tag: str) -> Column:
    """Return a uniform integer in 1..100 that depends on the page only."""
    from pyspark.sql import functions as f

    return f.pmod(f.xxhash64(f.lit(seed), f.lit(tag), f.col("page")), f.lit(100)) + 1


def _title() -> Column:
    from pyspark.sql import functions as f

    page = f.col("page").cast("string")
    return (
        f.when(f.col("type") == "categorize", f.concat(f.lit("Category:Subject "), page))
        .when(f.col("share") <= WIKIS[0][2], f.concat(f.lit("Q"), page))
        .otherwise(f.concat(f.lit("Page "), page))
    )


def _change_columns(parameters: WorkloadParameters) -> list[Column]:
    from pyspark.sql import functions as f

    seed = parameters.seed
    row, title, is_edit = f.col(ROW), f.col("title"), f.col("is_edit")
    url = f.concat(f.lit("https://"), f.col("server_name"))
    moment = f.timestamp_millis(f.col("time_ms"))
    new_length = f.greatest(f.col("old_length") + f.col("change"), f.lit(0).cast("long"))
    is_new = f.col("type") == "new"
    revision = f.lit(FIRST_CHANGE_ID * 2) + row * 2
    meta = f.struct(
        f.concat(url, f.lit("/wiki/"), f.replace(title, f.lit(" "), f.lit("_"))).alias("uri"),
        _uuid(seed, "request").alias("request_id"),
        _uuid(seed, "meta").alias("id"),
        f.date_format(moment, "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'").alias("dt"),
        f.col("server_name").alias("domain"),
        f.lit("mediawiki.recentchange").alias("stream"),
        f.lit("eqiad.mediawiki.recentchange").alias("topic"),
        f.lit(0).alias("partition"),
        row.alias("offset"),
    )
    return [
        f.lit("/mediawiki/recentchange/1.0.0").alias("$schema"),
        meta.alias("meta"),
        (f.lit(FIRST_CHANGE_ID) + row).alias("id"),
        f.col("type"),
        f.when(f.col("type") == "categorize", 14).otherwise(0).alias("namespace"),
        title,
        random_text(seed, "comment", 24).alias("comment"),
        f.floor(f.col("time_ms") / 1000).alias("timestamp"),
        f.concat(f.lit("User "), f.col("user_number").cast("string")).alias("user"),
        # A user is a bot or is not; a few bots make a good part of the edits on the live stream.
        (f.col("user_number") % 5 == 0).alias("bot"),
        f.when(is_edit, uniform_fraction(seed, "minor") < 0.3).alias("minor"),
        f.when(
            is_edit,
            f.struct(f.when(~is_new, f.col("old_length")).alias("old"), new_length.alias("new")),
        ).alias("length"),
        f.when(is_edit, f.struct(f.when(~is_new, revision - 1).alias("old"), revision.alias("new"))).alias(
            "revision"
        ),
        url.alias("server_url"),
        f.col("server_name"),
        f.lit("/w").alias("server_script_path"),
        f.col("wiki"),
    ]


def _pick(percent: Column, shares: list[tuple[str, int]] | tuple[tuple[str, int], ...]) -> Column:
    """Return the name in whose share ``percent`` (1..100) falls; the shares add up to 100."""
    from pyspark.sql import functions as f

    choice: Column | None = None
    upper = 0
    for name, share in shares[:-1]:
        upper += share
        choice = f.when(percent <= upper, name) if choice is None else choice.when(percent <= upper, name)
    last = f.lit(shares[-1][0])
    return last if choice is None else choice.otherwise(last)


def _uuid(seed: int, tag: str) -> Column:
    """Return 128 random bits in the usual hexadecimal groups of 8-4-4-4-12."""
    from pyspark.sql import functions as f

    def digits(half: int) -> Column:
        return f.lpad(f.lower(f.hex(hashed(seed, f"{tag}/{half}"))), 16, "0")

    high, low = digits(0), digits(1)
    groups = (f.substring(high, 1, 8), f.substring(high, 9, 4), f.substring(high, 13, 4))
    return f.concat_ws("-", *groups, f.substring(low, 1, 4), f.substring(low, 5, 12))
