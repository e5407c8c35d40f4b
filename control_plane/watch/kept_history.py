"""Keeps the history of the page beside the record of the job, so that it outlives a control plane process.

A document of its own: the record is written with each change of the job, which must not wait for this one. What cannot
be read or written costs the history, and nothing else.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import zlib
from dataclasses import asdict
from functools import partial
from typing import Any

import orjson

from control_plane.ports import Background
from control_plane.watch.history import History, KeptHistory, Mark, Point, Value
from weir.errors import WeirError
from weir.records.file_keeper import Keeper

log = logging.getLogger("control_plane")

#: Name of the document beside the record.
NAME = "history"
FORMAT_VERSION = 1
#: Written so often, after the first seconds; to etcd, which keeps earlier versions until it compacts, more rarely.
_FIRST_SAVE_S, _SAVE_S, _SHARED_SAVE_S = 2.0, 10.0, 60.0
#: Of the document; of a job with very many stages the oldest part is left out.
BYTES_MAX = 512 << 10
#: Of what a document unfolds to: some other file is not read to its end.
_UNFOLDED_BYTES_MAX = 16 << 20


def history_to_bytes(kept: KeptHistory, job_id: str) -> bytes:
    """The document, of at most ``BYTES_MAX`` bytes: the newest part that fits."""
    points = kept.points
    while True:
        document = {
            "format_version": FORMAT_VERSION,
            "job_id": job_id,
            "names": kept.names,
            "points": [[time_ms, *values] for time_ms, values in points],
            "marks": [asdict(mark) for mark in kept.marks],
        }
        data = zlib.compress(orjson.dumps(document))
        if len(data) <= BYTES_MAX or not points:
            return data
        points = points[len(points) // 2 + 1 :]


def history_from_bytes(data: bytes, job_id: str) -> KeptHistory | None:
    """What was kept of a job; None: it is of another job, or of another version of Weir.

    Raises:
        ValueError: it is no such document.
    """
    unfolding = zlib.decompressobj()
    try:
        text = unfolding.decompress(data, _UNFOLDED_BYTES_MAX)
        document: dict[str, Any] = orjson.loads(text)
        if document["format_version"] != FORMAT_VERSION or document["job_id"] != job_id:
            return None
        names = tuple(str(name) for name in document["names"])
        points = tuple(_point(item, len(names)) for item in document["points"])
        marks = tuple(
            Mark(_number(item["time_ms"]), str(item["kind"]), str(item["text"])) for item in document["marks"]
        )
    except (zlib.error, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"it is damaged ({type(error).__name__}: {error})") from error
    if any(before[0] >= after[0] for before, after in itertools.pairwise(points)):
        raise ValueError("it is damaged (its times do not ascend)")
    return KeptHistory(names, points, marks)


def _point(item: list[Any], width: int) -> Point:
    time_ms, *values = item
    if len(values) != width:
        raise ValueError("a moment has not a value for each column")
    return _number(time_ms), tuple(_value(value) for value in values)


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError("a time is no whole number")
    return value


def _value(value: object) -> Value:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError("a value is no number")
    return value


class HistoryKeeping:
    """Reads the history at the start, and writes it from time to time; used in the event loop."""

    def __init__(self, history: History, job_id: str, keeper: Keeper, background: Background) -> None:
        self._history, self._job_id = history, job_id
        self._keeper, self._background = keeper, background
        self._failed = False
        #: What was written last; that of a job that is over does not change any more.
        self._written = b""
        #: A write that was cancelled goes on in its thread.
        self._writing = threading.Lock()

    async def load(self) -> KeptHistory | None:
        """What an earlier process kept of this job; None: nothing that can be used."""
        try:
            data = await self._background.in_thread(partial(self._keeper.load_beside, NAME))
            return None if data is None else history_from_bytes(data, self._job_id)
        except (WeirError, ValueError) as error:
            log.warning("the history of the page begins anew: %s", error)
            return None

    async def run(self) -> None:
        """Write it from time to time, until cancelled."""
        pause_s, pause_s_max = _FIRST_SAVE_S, _SHARED_SAVE_S if self._keeper.is_shared else _SAVE_S
        while True:
            await self._background.sleep(pause_s)
            await self.save()
            pause_s = min(2 * pause_s, pause_s_max)

    async def save(self) -> None:
        """Write it now."""
        try:
            await self._background.in_thread(partial(self._write, self._history.kept()))
            self._failed = False
        except WeirError as error:
            # Once: the disk that is full now will be so in ten seconds.
            if not self._failed:
                log.warning("the history of the page is not kept: %s", error)
            self._failed = True

    def _write(self, kept: KeptHistory) -> None:
        """Pack and write, in a thread: packing alone takes some ms."""
        with self._writing:
            data = history_to_bytes(kept, self._job_id)
            if data != self._written:
                self._keeper.save_beside(NAME, data)
                self._written = data
