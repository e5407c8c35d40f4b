"""Inputs that look like what people have: change events, repository events, logs, numbers, wide rows, CSV of orders.

Seeded, and none of them the generator of a test. Lines of several shapes are mixed, keys come and go, texts have
escapes and characters beyond ASCII. Each corpus has an integer and a key, maybe inside other objects: the two columns
that the throughput job wants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.events_file import DATA_DIRECTORY, SEED, made_if_absent

_PART_ROWS = 125_000
_WORDS = (
    *("the", "of", "and", "to", "in", "a", "is", "was", "for", "on", "as", "with", "by", "at", "from"),
    *(
        "revert",
        "edit",
        "page",
        "category",
        "template",
        "link",
        "fix",
        "typo",
        "50%",
        "f(x)=y",
        "<b>bold</b>",
    ),
    *(
        "École",
        "Straße",
        "Москва",
        "日本語",
        "naïve",
        "🚀",
        '"quoted"',
        "C:\\temp",
        "tab\there",
        "line\nbreak",
    ),
)
_WIKIS = ("enwiki", "dewiki", "frwiki", "wikidatawiki", "commonswiki", "ruwiki", "jawiki", "eswiki")


@dataclass(frozen=True)
class Corpus:
    """One kind of input."""

    name: str
    #: Where the integer and the key are in a line.
    id_path: tuple[str, ...]
    key_path: tuple[str, ...]
    #: Makes the lines of a part, String, about as many as rows wanted, of several shapes one after the other.
    lines: Callable[[_Draw, int], list[pl.Series]]
    #: Instead, if the files are CSV: makes the records of a part.
    records: Callable[[_Draw, int], pl.DataFrame] | None = None

    @property
    def suffix(self) -> str:
        """What the names of files end with."""
        return ".csv" if self.records else ".jsonl"

    def write_part(self, draw: _Draw, rows: int, folder: Path, part: int) -> None:
        """Make a file of about so many rows."""
        path = folder / f"part-{part:05d}{self.suffix}"
        if self.records is not None:
            self.records(draw, rows).write_csv(path)
            return
        lines = draw.shuffled(self.lines(draw, rows))
        path.write_text("\n".join(lines.to_list()) + "\n", encoding="utf-8")


class _Draw:
    """Random columns."""

    def __init__(self, rng: np.random.Generator, first_row: int) -> None:
        self._rng = rng
        self._first = first_row
        self._texts = {
            words: pl.Series([" ".join(rng.choice(_WORDS, rng.integers(0, words + 1))) for _ in range(2_000)])
            for words in (4, 12, 30)
        }

    def number(self, rows: int, low: int, high: int) -> pl.Series:
        return pl.Series(self._rng.integers(low, high, rows))

    def real(self, rows: int, scale: float) -> pl.Series:
        return pl.Series(self._rng.normal(0, scale, rows))

    def row(self, rows: int) -> pl.Series:
        self._first += rows
        return pl.Series(np.arange(self._first - rows, self._first))

    def flag(self, rows: int, share: float) -> pl.Series:
        return pl.Series(self._rng.random(rows) < share)

    def pick(self, rows: int, values: Sequence[object]) -> pl.Series:
        return pl.Series(values).gather(self._rng.integers(0, len(values), rows))

    def text(self, rows: int, words: int) -> pl.Series:
        pool = self._texts[words]
        return pool.gather(self._rng.integers(0, len(pool), rows))

    def token(self, rows: int) -> pl.Series:
        return pl.Series(self._rng.integers(0, 2**63, rows)).cast(pl.String)

    def shuffled(self, lines: list[pl.Series]) -> pl.Series:
        joined = pl.concat(lines)
        return joined.gather(self._rng.permutation(len(joined)))


def _objects(columns: dict[str, object]) -> pl.Series:
    """One JSON object a row; nested dictionaries are nested objects."""
    return pl.DataFrame({"o": _struct(columns)})["o"].struct.json_encode()


def _struct(columns: dict[str, object]) -> pl.Series:
    made = {name: _struct(value) if isinstance(value, dict) else value for name, value in columns.items()}
    rows = next(len(value) for value in made.values() if isinstance(value, pl.Series))
    frame = pl.DataFrame(
        {
            n: v if isinstance(v, pl.Series) else pl.Series([v]).new_from_index(0, rows)
            for n, v in made.items()
        }
    )
    return frame.to_struct("o")


def _wikipedia(draw: _Draw, rows: int) -> list[pl.Series]:
    """Change events of a wiki, 0.8 to 1.3 KB."""

    def change(count: int, kind: str, more: dict[str, object]) -> pl.Series:
        wiki, title = draw.pick(count, _WIKIS), draw.text(count, 4)
        site = pl.Series("https://" + wiki + ".example.org")
        return _objects(
            {
                "$schema": "/mediawiki/recentchange/1.0.0",
                "meta": {
                    "uri": site + "/wiki/" + title,
                    "request_id": draw.token(count),
                    "id": draw.token(count),
                    "dt": "2026-05-01T12:00:00.123Z",
                    "domain": wiki + ".example.org",
                    "stream": "mediawiki.recentchange",
                    "offset": draw.row(count) + 5_000_000_000,
                },
                "id": draw.number(count, 1, 2_000_000_000),
                "type": kind,
                "namespace": draw.number(count, 0, 15),
                "title": title,
                "title_url": site + "/wiki/" + title,
                "comment": draw.text(count, 30),
                "timestamp": draw.number(count, 1_714_000_000, 1_715_000_000),
                "user": "User " + draw.number(count, 0, 50_000).cast(pl.String),
                "bot": draw.flag(count, 0.3),
                **more,
                "server_url": site,
                "server_name": wiki + draw.number(count, 0, 2_000).cast(pl.String) + ".example.org",
                "server_script_path": "/w",
                "wiki": wiki,
                "parsedcomment": draw.text(count, 30) + ' <a href="/wiki/X" title="X">X</a>',
            }
        )

    edits, news, logs = rows * 6 // 10, rows * 2 // 10, rows - rows * 6 // 10 - rows * 2 // 10
    return [
        change(
            edits,
            "edit",
            {
                "minor": draw.flag(edits, 0.3),
                "length": {"old": draw.number(edits, 0, 99_999), "new": draw.number(edits, 0, 99_999)},
                "revision": {"old": draw.row(edits), "new": draw.row(edits)},
            },
        ),
        change(
            news, "new", {"patrolled": draw.flag(news, 0.5), "length": {"new": draw.number(news, 0, 9_999)}}
        ),
        change(logs, "log", {"log_params": {"target": draw.text(logs, 4), "count": draw.number(logs, 0, 9)}}),
    ]


def _github(draw: _Draw, rows: int) -> list[pl.Series]:
    """Events of repositories with payloads of 0.5 to 3 KB; key and number lie in nested objects."""

    def event(count: int, kind: str, payload: dict[str, object]) -> pl.Series:
        login = "dev-" + draw.number(count, 0, 90_000).cast(pl.String)
        return _objects(
            {
                "id": draw.token(count),
                "type": kind,
                "actor": {
                    "id": draw.number(count, 1, 90_000),
                    "login": login,
                    "url": "https://api.example.com/u/" + login,
                },
                "repo": {
                    "id": draw.number(count, 1, 2_000_000_000),
                    "name": login + "/repo-" + draw.number(count, 0, 3).cast(pl.String),
                },
                "payload": payload,
                "public": True,
                "created_at": "2026-05-01T12:00:00Z",
            }
        )

    pushes, issues = rows // 2, rows - rows // 2
    commits = pl.DataFrame(
        {
            "sha": draw.token(3 * pushes),
            "message": draw.text(3 * pushes, 12),
            "distinct": draw.flag(3 * pushes, 0.9),
        }
    ).to_struct("c")
    lists = pl.DataFrame({"c": commits, "g": np.repeat(np.arange(pushes), 3)}).group_by(
        "g", maintain_order=True
    )
    return [
        event(
            pushes,
            "PushEvent",
            {"push_id": draw.row(pushes), "ref": "refs/heads/main", "commits": lists.agg("c")["c"]},
        ),
        event(
            issues,
            "IssuesEvent",
            {
                "action": "opened",
                "issue": {
                    "number": draw.number(issues, 1, 9_999),
                    "title": draw.text(issues, 12),
                    "body": draw.text(issues, 30) + "\r\n\r\n" + draw.text(issues, 30),
                    "labels": pl.Series([["bug", "p1"], [], ["question"]]).gather(draw.number(issues, 0, 3)),
                    "comments": draw.number(issues, 0, 50),
                },
            },
        ),
    ]


def _logs(draw: _Draw, rows: int) -> list[pl.Series]:
    """Structured log lines of 250 to 500 bytes; the key comes last."""
    return [
        _objects(
            {
                "ts": "2026-05-01T12:00:00.123456Z",
                "level": draw.pick(rows, ["INFO", "INFO", "WARN", "ERROR"]),
                "msg": draw.text(rows, 12),
                "ctx": {
                    "trace": draw.token(rows),
                    "span": draw.token(rows),
                    "tags": draw.pick(rows, [["a"], ["b", "c"], []]),
                },
                "dur_ms": draw.real(rows, 20.0).abs(),
                "id": draw.number(rows, 1, 1_000_000),
                "server_name": "web-" + draw.number(rows, 0, 5_000).cast(pl.String),
            }
        )
    ]


def _numbers(draw: _Draw, rows: int) -> list[pl.Series]:
    """Sensor readings: 20 numbers of all forms a line."""
    columns: dict[str, object] = {
        "id": draw.number(rows, -(2**40), 2**40),
        "server_name": "s" + draw.number(rows, 0, 50_000).cast(pl.String),
    }
    for place in range(20):
        columns[f"v{place}"] = (
            draw.real(rows, 10.0 ** (place - 10)) if place % 3 else draw.number(rows, -9_999, 9_999)
        )
    return [_objects(columns)]


def _wide(draw: _Draw, rows: int) -> list[pl.Series]:
    """100 columns, the wanted ones in the middle."""
    columns: dict[str, object] = {}
    for place in range(98):
        if place == 50:
            columns |= {
                "id": draw.number(rows, 1, 1_000_000),
                "server_name": "host-" + draw.number(rows, 0, 9_999).cast(pl.String),
            }
        columns[f"column_{place}"] = (
            draw.number(rows, 0, 999) if place % 2 else draw.pick(rows, ["on", "off", None])
        )
    return [_objects(columns)]


def _texts(draw: _Draw, rows: int) -> list[pl.Series]:
    """Articles of 1 to 4 KB, mostly beyond ASCII; wanted values two objects down, after deep revisions."""

    def article(count: int, words: Sequence[str]) -> pl.Series:
        pool = pl.Series([" ".join(draw.pick(200, words).to_list()) for _ in range(200)])
        nested: dict[str, object] = {"by": draw.text(count, 4), "at": draw.number(count, 0, 10**9)}
        for _ in range(12):
            nested = {"parent": nested, "minor": draw.flag(count, 0.5), "note": draw.text(count, 4)}
        return _objects(
            {
                "body": pool.gather(draw.number(count, 0, len(pool))),
                "revision": nested,
                "page": {
                    "ids": {"wikidata": draw.token(count), "local": draw.number(count, 1, 10**9)},
                    "title": {
                        "raw": draw.text(count, 4),
                        "key": "статья-" + draw.number(count, 0, 50_000).cast(pl.String),
                    },
                },
            }
        )

    third = rows // 3
    return [
        article(third, ["日本語の", "テキスト、", "漢字", "カタカナ。", "東京"]),
        article(third, ["Москва", "и", "область", "в", "году,", "был"]),
        article(rows - 2 * third, ["été", "plain", "naïve", "words", "🚀", '"quoted"', "a/b\\c"]),
    ]


def _orders(draw: _Draw, rows: int) -> pl.DataFrame:
    """Lines of orders, 150 to 200 bytes: numbers, dates, flags, and texts with delimiters, quotes and newlines."""
    return pl.DataFrame(
        {
            "id": draw.number(rows, 1, 2_000_000_000),
            "created_at": pl.Series(["2026-05-01 12:00:"]).new_from_index(0, rows)
            + draw.number(rows, 10, 60).cast(pl.String),
            "server_name": "shop-" + draw.number(rows, 0, 50_000).cast(pl.String) + ".example.org",
            "customer": draw.token(rows),
            "quantity": draw.number(rows, 1, 20),
            "price": draw.real(rows, 40.0).abs().round(2),
            "discount": draw.real(rows, 1.0).abs(),
            "gift": draw.flag(rows, 0.1),
            "status": draw.pick(rows, ["paid", "shipped", None, "returned"]),
            "note": draw.text(rows, 4),
            "latitude": draw.real(rows, 50.0),
            "longitude": draw.real(rows, 90.0),
            "source": draw.pick(rows, ["web", "app", "shop, counter"]),
        }
    )


def _no_lines(draw: _Draw, rows: int) -> list[pl.Series]:
    return []


CORPORA = {
    corpus.name: corpus
    for corpus in (
        Corpus("wikipedia", ("id",), ("server_name",), _wikipedia),
        Corpus("github", ("repo", "id"), ("repo", "name"), _github),
        Corpus("logs", ("id",), ("server_name",), _logs),
        Corpus("numbers", ("id",), ("server_name",), _numbers),
        Corpus("wide", ("id",), ("server_name",), _wide),
        Corpus("texts", ("page", "ids", "local"), ("page", "title", "key"), _texts),
        Corpus("csv", ("id",), ("server_name",), _no_lines, _orders),
    )
}


def corpus_directory(
    corpus: Corpus,
    events: int,
    *,
    root: Path = DATA_DIRECTORY,
    on_part: Callable[[int, int], None] | None = None,
) -> Path:
    """The directory with these lines; made if it is not there yet, all of it or nothing.

    Args:
        corpus: what the lines look like.
        events: number of lines.
        root: where directories of events are kept.
        on_part: called with the number of parts written and their total.
    """
    parts = -(-events // _PART_ROWS)

    def write(fresh: Path) -> None:
        rng = np.random.default_rng(SEED)
        for part in range(parts):
            rows = min(_PART_ROWS, events - part * _PART_ROWS)
            corpus.write_part(_Draw(rng, part * _PART_ROWS), rows, fresh, part)
            if on_part is not None:
                on_part(part + 1, parts)

    return made_if_absent(root / f"{corpus.name}-{events}-seed-{SEED}", write)
