"""The base of sources that a job's author writes; ``weir.operators.sources.user.user_source`` runs them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import polars as pl
import pyarrow as pa

from weir.author.operator import Json, OperatorContext

#: Rows with the columns of the source's schema: dicts, or a table of Arrow or Polars.
Rows: TypeAlias = Sequence[Mapping[str, Any]] | pa.RecordBatch | pa.Table | pl.DataFrame


class Source(ABC):
    """A source of your own: which splits there are, and how one is read from a position on.

    A *split* is a part of the input that one subtask reads in order: a range of rows, a file, a partition. A *position*
    says where to go on in a split. Both are JSON values, and both are yours. Weir shares the splits among the
    subtasks, keeps the positions in checkpoints, goes on from there after a restart (with another number of subtasks
    too), keeps to rate and limit, makes times and watermarks, and puts bad rows aside.

    Every subtask has a Source of its own, and calls it in one thread: ``open``, ``splits``, ``read`` for each of its
    splits, ``close``. On task managers that thread does nothing else, and reads ahead of the subtask. Rows come exactly
    once if ``read`` from a position yields what came after it the first time.

    What a method raises fails the job. An ``OSError`` (``ConnectionError``, ``TimeoutError``) says that the place it
    reads from is away: the job begins again from its checkpoint as often as it takes, after longer and longer waits.

    The watermark follows the split that is behind: of the largest event times of the splits it is the smallest. A
    split that waits for its turn holds it, too, until it has been begun. A split that has ended, or had nothing for
    ``idle_timeout_ms``, does not.
    """

    #: How many splits are read at a time, in turn, in the order of ``splits``; None: all. A split that never ends
    #: keeps its place, so that a source of such splits leaves it at None.
    open_splits_max: int | None = None

    def open(self, context: OperatorContext) -> None:
        """Connect; called once, before everything else.

        ``context.dead_letters.reject(origin, position, reason, raw)`` puts aside what is no row, if there are dead
        letters (else it is None).
        """

    def splits(self) -> Sequence[Json]:
        """Return all splits, each once; by default one, None.

        Each subtask calls it at the start, but not at a restart, where the checkpoint has them, and must be
        given the same list: what can change meanwhile is fixed in the constructor. With ``discover_ms`` it is called
        again and again, at restarts too, and may give other splits from call to call: new ones are taken in, each by
        one subtask. A split that is listed no more is read to its end, then forgotten: listed again, it is new.
        """
        return [None]

    @abstractmethod
    def read(self, split: Json, position: Json) -> Iterator[tuple[Rows, Json] | None]:
        """Yield ``(rows, position)``: some rows, and where to go on after them; the split ends with the iterator.

        Yield None if there is nothing now: it is asked again after 5 ms, then later and later up to half a
        second. An iterator that waits for its next row keeps the other splits of its subtask waiting; rows that it has
        yielded are handed on. Rows that come one by one are gathered; some hundred to some ten thousand rows at a time
        are quicker still. No rows and a position go on after what is no row.

        Args:
            split: what to read.
            position: as yielded before; None: from the beginning.
        """

    def close(self) -> None:
        """Release everything; called once."""
