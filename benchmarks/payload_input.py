"""Parquet files of rows with a payload of some 200 bytes, of texts of several kinds."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import polars as pl

from benchmarks.events_file import DATA_DIRECTORY, SEED

Compression: TypeAlias = Literal["snappy", "zstd", "lz4", "gzip", "uncompressed"]
LETTERS = "letters"
SNAPPY: Compression = "snappy"
PAYLOAD_BYTES = 200
_KEYS = 100_000
_PART_ROWS = 500_000
_ROW_GROUP_ROWS = 131_072
_WORDS, _WORD_LETTERS_MAX, _WORDS_A_ROW = 5_000, 10, 32


def payload_directory(
    events: int, texts: str, compression: Compression, report: Callable[[str, float], None]
) -> Path:
    """The directory of Parquet files; made if it is not there yet, all of it or nothing.

    Args:
        events: rows, with ``id`` (int64), ``server_name`` and ``payload``.
        texts: what the payload is, a name of ``TEXTS``.
        compression: as Polars calls it.
        report: called with what is being done and the part of it that is done, 0 to 1.
    """
    kind = "" if (texts, compression) == (LETTERS, SNAPPY) else f"-{texts}-{compression}"
    directory = DATA_DIRECTORY / f"payload-{events}-{_KEYS}-{PAYLOAD_BYTES}{kind}-seed-{SEED}"
    if directory.exists():
        return directory
    DATA_DIRECTORY.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=DATA_DIRECTORY))
    rng = np.random.default_rng(SEED)
    try:
        for part, first in enumerate(range(0, events, _PART_ROWS)):
            rows = min(_PART_ROWS, events - first)
            payload = TEXTS[texts](rng, rows)
            keys = "server-" + pl.Series(rng.integers(1, _KEYS + 1, rows)).cast(pl.String)
            frame = pl.DataFrame(
                {"id": np.arange(first, first + rows), "server_name": keys, "payload": payload}
            )
            path = fresh / f"part-{part:05d}.parquet"
            frame.write_parquet(
                path, compression=compression, row_group_size=_ROW_GROUP_ROWS, use_pyarrow=True
            )
            report("generating the input", (first + rows) / events)
        os.replace(fresh, directory)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return directory


def _letters(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Letters that do not repeat within what a compressor looks at."""
    return _strings(rng.integers(97, 123, rows * PAYLOAD_BYTES, dtype=np.uint8))


def _hexadecimal(rng: np.random.Generator, rows: int) -> np.ndarray:
    digits = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
    return _strings(digits[rng.integers(0, 16, rows * PAYLOAD_BYTES)])


def _strings(letters: np.ndarray) -> np.ndarray:
    return letters.view(f"S{PAYLOAD_BYTES}").astype(f"U{PAYLOAD_BYTES}")


def _words(rng: np.random.Generator, rows: int) -> pl.Series:
    """Words of a language of 5,000, of which few are frequent."""
    lengths = rng.integers(2, _WORD_LETTERS_MAX, _WORDS)
    language = pl.Series(["".join(map(chr, rng.integers(97, 123, length))) for length in lengths])
    chosen = language.gather(rng.zipf(1.3, rows * _WORDS_A_ROW) % _WORDS)
    return chosen.reshape((rows, _WORDS_A_ROW)).arr.join(" ")


def _json(rng: np.random.Generator, rows: int) -> pl.Series:
    """Objects with the same keys, as logs have them."""
    columns = pl.DataFrame(
        {
            "user": rng.integers(0, 1_000, rows),
            "page": rng.integers(0, 5_000, rows),
            "session": rng.integers(1 << 39, 1 << 40, rows),
            "time": rng.integers(1_600_000_000_000, 1_700_000_000_000, rows),
        }
    )
    form = (
        '{{"time":{},"user":"user-{}","action":"click","page":"/products/{}","session":{},'
        '"agent":"Mozilla/5.0 (X11; Linux x86_64) Firefox/128.0","ok":true,"ms":{}}}'
    )
    order = ("time", "user", "page", "session", "user")
    return columns.select(pl.format(form, *map(pl.col, order))).to_series()


#: By name what makes so many payloads.
TEXTS: dict[str, Callable[[np.random.Generator, int], np.ndarray | pl.Series]] = {
    LETTERS: _letters,
    "hexadecimal": _hexadecimal,
    "words": _words,
    "json": _json,
}
