"""Of which keys of a block a handle reads all that they have, when it needs that of one of them."""

from __future__ import annotations

from collections.abc import Sequence

from weir.state.tables.values.value_table import ValueTable

#: Keys that are read in one go: at first, and at most.
_KEYS, _KEYS_MAX = 16, 256


class KeysAhead:
    """Of one handle. A block has its keys in the order in which rows come to them first.

    More keys are read in one go as long as rows use half of those that were read, and fewer if they do not: a function
    may look into the state of few of its keys.
    """

    def __init__(self, table: ValueTable) -> None:
        self._table = table
        self._is_slow = table.reads_owners
        self._count = _KEYS
        #: Whether rows of the last block used what half of its keys have, or more.
        self._is_wanted = False
        #: Keys of the block; positions in it that are used, and those that were read last.
        self._keys = 0
        self._used: set[int] = set()
        self._read = range(0)

    def begin(self, owners: Sequence[bytes]) -> None:
        """A block begins: read now what is needed anyway, with the entries that say how much a key has.

        Args:
            owners: as for :meth:`use`.

        Raises:
            StateError: the store cannot be read.
        """
        self._keys = len(owners)
        if self._is_slow and self._is_wanted:
            unknown = [at for at, owner in enumerate(owners) if not self._table.is_known(owner)]
            if unknown:
                first = unknown[0]
                count = self._table.read_ahead(owners[first : first + self._count])
                self._read = range(first, first + count)

    def use(self, at: int, owners: Sequence[bytes]) -> None:
        """What the key at a position has is needed now, in this block.

        Args:
            at: the position.
            owners: of the block, what the state keys of each key's entries begin with.

        Raises:
            StateError: the store cannot be read.
        """
        if not self._is_slow:
            return
        self._used.add(at)
        if self._table.is_known(owners[at]):
            return
        if at >= self._read.stop:
            self._adapt()
        count = self._table.read_ahead(owners[at : at + self._count])
        self._read = range(at, at + count)

    def end(self) -> None:
        """The block is over: positions mean others."""
        if self._is_slow and self._keys:
            self._is_wanted = 2 * len(self._used) >= self._keys
            self._adapt()
            self._used = set()
        self._keys, self._read = 0, range(0)

    def _adapt(self) -> None:
        if self._read:
            used = sum(at in self._used for at in self._read)
            is_useful = 2 * used >= len(self._read)
            self._count = min(2 * self._count, _KEYS_MAX) if is_useful else max(self._count // 2, 1)
            self._read = range(0)
