"""The keys of a batch, which of them is the current one, and what all handles have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from weir.errors import StateError
from weir.keys import hashing as weir_keys


class StoredValues(Protocol):
    """Bytes by whole state keys: what handles need of a :class:`weir.state.tables.values.value_table.ValueTable`."""

    def key_prefix(self, group: int) -> bytes:
        """What the state keys of one key group start with."""

    def get_stored(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of these state keys; None where there is none."""

    def write_stored(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> None:
        """Write pairs and delete others, by state keys."""


class Keys:
    """The keys of some rows, in order; for ``get`` and ``put`` of handles. Good for one batch."""

    def __init__(
        self,
        hashes: np.ndarray,
        column: weir_keys.KeyColumn,
        max_parallelism: int,
        *,
        is_distinct: bool = False,
    ) -> None:
        """``hashes`` (uint64, shape (rows,)) are of the keys in ``column``; ``is_distinct``: no key is there twice."""
        self._is_distinct = is_distinct
        self.hashes = hashes
        self.column = column
        self._max_parallelism = max_parallelism

    def __len__(self) -> int:
        return len(self.hashes)

    @cached_property
    def _distinct_rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if self._is_distinct:
            every = np.arange(len(self))
            return every, every, every
        return weir_keys.distinct_keys(self.hashes, self.column)

    def take(self, rows: Any) -> Keys:
        """The keys of some of the rows, in this order; a row may be there several times.

        Args:
            rows: positions, an array or a list of integers.
        """
        chosen = np.asarray(rows, np.int64)
        return Keys(self.hashes[chosen], weir_keys.select_keys(self.column, chosen), self._max_parallelism)

    @property
    def first_rows(self) -> np.ndarray:
        """The first row of each distinct key, int64, ascending."""
        return self._distinct_rows[0]

    @property
    def last_rows(self) -> np.ndarray:
        """The last row of each distinct key, int64, in the order of :attr:`distinct`."""
        return self._distinct_rows[1]

    @property
    def inverse(self) -> np.ndarray:
        """For each row the position of its key in :attr:`distinct`, int64."""
        return self._distinct_rows[2]

    @cached_property
    def distinct(self) -> Keys:
        """Each key once, in the order in which they come first; itself if no key is there twice."""
        if self._is_distinct or len(rows := self.first_rows) == len(self):
            return self
        column = weir_keys.select_keys(self.column, rows)
        return Keys(self.hashes[rows], column, self._max_parallelism, is_distinct=True)

    @cached_property
    def _groups_and_keys(self) -> list[tuple[int, bytes]]:
        groups = weir_keys.key_groups(self.hashes, self._max_parallelism)
        return list(zip(groups.tolist(), self.user_keys, strict=True))

    @property
    def groups(self) -> np.ndarray:
        """Key group of each of them, uint16."""
        return weir_keys.key_groups(self.hashes, self._max_parallelism)

    @cached_property
    def user_keys(self) -> list[bytes]:
        """Canonical bytes of each of them (``weir.keys.hashing``); not to be changed."""
        return self.column.to_list()

    def group_and_key(self, index: int) -> tuple[int, bytes]:
        """Key group and canonical bytes of one of them."""
        return self._groups_and_keys[index]

    def state_keys(self, table: StoredValues) -> list[bytes]:
        """State key of each of them in a table of values."""
        groups = self.groups.tolist()
        prefixes = {group: table.key_prefix(group) for group in set(groups)}
        return [prefixes[group] + key for group, key in zip(groups, self.user_keys, strict=True)]

    def element_prefixes(self, table: StoredValues) -> list[bytes]:
        """What the state keys of each one's elements begin with; no key's begin like another's."""
        groups = self.groups.tolist()
        prefixes = {group: table.key_prefix(group) for group in set(groups)}
        return [
            prefixes[group] + len(key).to_bytes(4, "big") + key
            for group, key in zip(groups, self.user_keys, strict=True)
        ]


def element_owner(state_key: bytes) -> bytes:
    """What :meth:`Keys.element_prefixes` returned for the key whose element this is; empty: it is none."""
    # Key group, state id, an empty namespace, and the length of the key: see ``weir.state.layout``.
    stop = 9 + int.from_bytes(state_key[5:9], "big")
    return state_key[:stop] if len(state_key) >= stop else b""


class Cursor:
    """The current key of an operator: a position among the distinct keys of the batch that is processed."""

    __slots__ = ("block", "index", "readers")

    def __init__(self) -> None:
        #: What reads ahead for the handles (``weir.state.handles.keys_ahead``), so that they read together.
        self.readers: list[Any] = []
        #: Distinct keys; None between batches.
        self.block: Keys | None = None
        #: None: there is no current key.
        self.index: int | None = None


class Handle(ABC):
    """One declared state in a subtask. What it read and changed is of the cursor's block."""

    def __init__(self, name: str, cursor: Cursor) -> None:
        self.name = name
        self._cursor = cursor

    def _current(self) -> tuple[Keys, int]:
        """The block and the position of the current key.

        Raises:
            StateError: there is no current key.
        """
        block, index = self._cursor.block, self._cursor.index
        if block is None or index is None:
            raise StateError(
                f"state {self.name!r} has no current key here: use it in process(key, row, context), or below "
                "`for index in context.visit(keys)` in process_batch, or with get(keys) and put(keys, values)"
            )
        return block, index

    @property
    def is_set(self) -> bool:
        """Whether the current key has anything in it; to ask is no access. Never so of versions, windows and sessions.

        Raises:
            StateError: there is no current key.
        """
        return False

    @abstractmethod
    def prepare(self) -> None:
        """Work out what to write of the block. After an error nothing of the batch is to be written.

        Raises:
            TypeError, ValueError: a value is not of the declared type.
        """

    @abstractmethod
    def apply(self) -> None:
        """Write what :meth:`prepare` worked out, and forget the block.

        Raises:
            StateError: the store cannot be written.
        """

    @abstractmethod
    def discard(self) -> None:
        """Forget the block without writing."""


def check_length(name: str, keys: Keys, values: Any) -> None:
    """Check that there are as many values as keys.

    Raises:
        ValueError: there are more or fewer.
    """
    if len(values) != len(keys):
        raise ValueError(f"state {name!r}: it was given {len(values):,} values for {len(keys):,} keys")


def write_back(handles: Sequence[Handle]) -> None:
    """End a batch: write what its handles changed, all of it or, after an error in a value, nothing.

    Raises:
        TypeError, ValueError: a value is not of the declared type.
        StateError: the store cannot be written.
    """
    for handle in handles:
        handle.prepare()
    for handle in handles:
        handle.apply()


def one_value_each(name: str, keys: Keys, *, last: bool) -> np.ndarray | None:
    """The rows whose values to put for :attr:`Keys.distinct`; None: all.

    Raises:
        StateError: a key is there twice, and ``last`` does not say which value counts.
    """
    if len(keys.distinct) == len(keys):
        return None
    if not last:
        raise StateError(
            f"state {name!r}: put was given {len(keys):,} values for {len(keys.distinct):,} distinct keys; put one "
            "value for each of keys.distinct, or say put(..., last=True) to keep the last value of each key"
        )
    return keys.last_rows
