"""How one state is asked: what its entries mean, key by key and over ranges of keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Generic, TypeVar

import orjson
import pyarrow as pa
from typing_extensions import override

from weir.operators.queries.key_range import KeyRange
from weir.operators.queries.merging import BLOCK_ROWS, Entries
from weir.operators.queries.reading import RangeReading, StateReading
from weir.plan.graph import Node
from weir.protocol.queries import QueryError, Question
from weir.questions.json_values import arrow_column, plain
from weir.specs import OperatorSpec
from weir.state import layout, wanted
from weir.state.api import prefix_end
from weir.state.handles.retained import TIME_MS_MAX
from weir.state.tables.cells.cell_table import WholeCell
from weir.state.ttl import Ttl

SpecT_co = TypeVar("SpecT_co", bound=OperatorSpec, covariant=True)
#: Stands for "there is no value".
ABSENT: Any = object()
#: Of a key that is one of a range: more elements make the answer useless for the others.
KEY_ELEMENTS_MAX = 10_000


@dataclass(frozen=True)
class Cut:
    """The first entries of a key, in the order that was asked for: there are more than the limit that was given."""

    value: Any


@dataclass(frozen=True)
class AskedStep(Generic[SpecT_co]):
    """A step of which a state is asked."""

    spec: SpecT_co
    #: The step as it runs.
    node: Node
    #: User columns of its input.
    given: pa.Schema
    #: One of its ``asked_names``.
    state: str


class StateFormat(ABC):
    """How one state is asked."""

    #: Of a state whose entries expire.
    ttl: Ttl | None = None
    #: How many bytes of the keys of :meth:`runs` come before the user key.
    cut_bytes = 0
    #: Whether what a key has belongs to times.
    has_times = False
    #: Whether it tells what was in force at a time.
    has_versions = False
    #: Other states of the step that are read with it, by the names under which the job has their numbers.
    others: tuple[str, ...] = ()
    #: Whether what one key has is too much to be read in the thread of its owner: it is read from a copy.
    is_copied = False
    #: Whether its owner makes one entry of several now and then, so that who reads meanwhile may miss some.
    moves_entries = False
    #: Where all keys are, whatever their hash; None: in the key groups of their hashes.
    only_group: int | None = None

    @property
    def has_arrow_type(self) -> bool:
        """Return whether values have an Arrow type of their own, whichever they are."""
        return False

    @property
    def block_rows(self) -> int:
        """Keys of a range that are read at a time."""
        return BLOCK_ROWS

    def one(
        self, reading: StateReading, group: int, state_id: int, user_key: bytes, question: Question
    ) -> Any:
        """What an answer shows of a key; ``ABSENT`` if there is nothing, :class:`Cut` if there is more.

        Raises:
            QueryError: the question does not fit the state.
        """
        return self.shown(self.read(reading, group, state_id, user_key, question), question)

    @abstractmethod
    def read(
        self, reading: StateReading, group: int, state_id: int, user_key: bytes, question: Question
    ) -> Any:
        """What :meth:`shown` needs; called in the subtask's thread, for which rows wait.

        Raises:
            QueryError: the question does not fit the state.
        """

    def shown(self, found: Any, question: Question) -> Any:
        """What an answer shows of what was read; ``ABSENT`` if there is nothing, :class:`Cut` if there is more."""
        return found

    # --- ranges of keys ---

    def check_range(self, question: Question) -> None:
        """Refuse what a range of this state has not.

        Raises:
            QueryError: it has not.
        """
        if question.as_of_ms is not None and not self.has_versions:
            raise QueryError(400, "as_of is for versioned states")
        if question.has_times and not self.has_times:
            raise QueryError(400, "time_from and time_to are for versions, windows and sessions")

    @abstractmethod
    def runs(self, reading: RangeReading, keys: KeyRange) -> Iterator[Entries | None]:
        """Keys of a range and what they have, in runs; each in the order of its question.

        None: something has begun to be read, and other key groups may begin before somebody waits for it.
        """

    @abstractmethod
    def live(
        self, reading: RangeReading, block: list[tuple[bytes, Any]], question: Question
    ) -> Iterable[tuple[bytes, Any]]:
        """Keys of a block that have something, once each and in its order, and what they have."""

    def size_bytes(self, value: Any) -> int:
        """What a value of :meth:`live` takes in an answer, about."""
        return len(orjson.dumps(value, default=str))

    def plain_values(self, values: Sequence[Any]) -> list[Any]:
        """Values of :meth:`live` as JSON."""
        return [plain(value) for value in values]

    def arrow_values(self, values: Sequence[Any]) -> pa.Array:
        """Values of :meth:`live` as Arrow; those that no Arrow type has in common are JSON."""
        return arrow_column(values)


class EntryFormat(StateFormat):
    """States with one entry of each key."""

    cut_bytes = layout.NO_NAMESPACE_HEADER_BYTES

    def __init__(
        self,
        decode: Callable[[bytes], Any],
        stamp_of: Callable[[bytes], int] | None = None,
        ttl: Ttl | None = None,
        decode_many: Callable[[Sequence[bytes]], pa.Array] | None = None,
        is_there: Callable[[bytes], bool] | None = None,
        whole: WholeCell | None = None,
    ) -> None:
        """How an entry is read.

        Args:
            decode: value of an entry, or ``ABSENT``.
            stamp_of: the time of an entry, of states with a TTL.
            ttl: of such states.
            decode_many: the values of many entries that are there, much faster.
            is_there: False: an entry that means that there is none.
            whole: the cell that ``decode`` looks at, if it is a single one that is never half of a value.
        """
        self.whole = whole
        self._decode, self._stamp_of, self.ttl = decode, stamp_of, ttl
        self._decode_many, self._is_there = decode_many, is_there

    @override
    def read(
        self, reading: StateReading, group: int, state_id: int, user_key: bytes, question: Question
    ) -> Any:
        if question.is_bounded or question.as_of_ms is not None:
            raise QueryError(
                400, "this state has one value of each key: from, to, prefix and as_of are for others"
            )
        self.check_range(question)
        data = reading.get_many([layout.key_prefix(group, state_id) + user_key])[0]
        return ABSENT if data is None else self.value(reading, data)

    def value(self, reading: RangeReading, data: bytes) -> Any:
        """What an answer shows of the entry of a key; ``ABSENT``: it does not count."""
        if self._stamp_of is not None and reading.is_expired(self._stamp_of(data)):
            return ABSENT
        return self._decode(data)

    @override
    def runs(self, reading: RangeReading, keys: KeyRange) -> Iterator[Entries]:
        prefix, (start, stop) = keys.prefix, keys.bounds
        last = prefix_end(prefix) if stop is None else prefix + stop
        assert last is not None, "it begins with a key group, which is not only 0xFF"
        if prefix + start < last:
            with wanted.first(keys.first_entries):
                entries = reading.scan(prefix + start, last, reverse=keys.reverse)
            yield entries

    @override
    def live(
        self, reading: RangeReading, block: list[tuple[bytes, Any]], question: Question
    ) -> list[tuple[bytes, Any]]:
        if self._stamp_of is not None:
            stamp_of, is_expired = self._stamp_of, reading.is_expired
            block = [entry for entry in block if not is_expired(stamp_of(entry[1]))]
        return block if self._is_there is None else [entry for entry in block if self._is_there(entry[1])]

    @property
    @override
    def has_arrow_type(self) -> bool:
        return self._decode_many is not None

    @override
    def size_bytes(self, value: Any) -> int:
        return len(value)

    @override
    def plain_values(self, values: Sequence[Any]) -> list[Any]:
        if self._decode_many is None:
            return [self._decode(data) for data in values]
        column = self._decode_many(values)
        found: list[Any] = column.to_pylist()
        return found if pa.types.is_integer(column.type) else [plain(value) for value in found]

    @override
    def arrow_values(self, values: Sequence[Any]) -> pa.Array:
        if self._decode_many is not None:
            return self._decode_many(values)
        return arrow_column([self._decode(data) for data in values])


def below_key(question: Question) -> Question:
    """The question about what one key of a range has: ``from`` and ``to`` of a range are keys, not times."""
    if question.key is not None:
        if not question.has_times:
            return question
        if question.is_bounded:
            raise QueryError(400, "of one key from and to are the times: leave time_from and time_to out")
    first, last = question.time_from_ms, question.time_to_ms
    return replace(
        question,
        key=question.key or "",
        first=None if first is None else str(first),
        last=None if last is None else str(last),
        prefix=None,
        reverse=question.reverse and question.key is not None,
        limit=question.limit if question.key is not None else KEY_ELEMENTS_MAX,
        time_from_ms=None,
        time_to_ms=None,
    )


def first_of(entries: Iterable[Any], question: Question) -> Any:
    """The entries of a key up to the limit; ``ABSENT`` if there are none.

    Args:
        entries: in the order that was asked for.
        question: about what one key has.

    Raises:
        QueryError: 413: there are more, and the caller has not said that the first ones will do.
    """
    found = list(islice(entries, question.limit + 1))
    if len(found) <= question.limit:
        return found or ABSENT
    if question.cuts:
        return Cut(found[:-1])
    raise QueryError(
        413,
        f"the key has more than {question.limit:,} entries: give limit for the first ones, or ask for a range",
    )


def times_of(question: Question) -> tuple[int, int]:
    """Return from when to when what a key has is asked for, both inclusive, ms.

    Raises:
        QueryError: the question has no times.
    """
    if question.prefix is not None:
        raise QueryError(400, "prefix is for keys that are text; give from and to in ms")
    bounds = []
    for text, default in ((question.first, -TIME_MS_MAX), (question.last, TIME_MS_MAX)):
        number = default if text is None else number_of(text)
        if number is None or not -TIME_MS_MAX <= number <= TIME_MS_MAX:
            raise QueryError(400, f"{text!r} is no time in ms since the epoch")
        bounds.append(number)
    return bounds[0], bounds[1]


def number_of(text: str) -> Any:
    """A whole number as text; None: it is none."""
    try:
        return int(text)
    except ValueError:
        return None
