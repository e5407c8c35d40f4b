"""The keys of a block of which a handle reads all that they have, when it needs that of one of them."""

from __future__ import annotations

from collections.abc import Sequence

from weir.state.handles.block import Cursor, Keys
from weir.state.tables.values.reading_together import read_together
from weir.state.tables.values.value_table import ValueTable

#: Keys that are read in one go: at first, and at most.
_KEYS, _KEYS_MAX = 16, 256


class KeysAhead:
    """The keys that one handle reads ahead. A block has its keys in the order in which rows come to them first.

    More keys are read in one go as long as rows use half of those that were read, and fewer if they do not: a function
    may look into the state of few of its keys. Handles of one step read together what their blocks begin with.
    """

    def __init__(self, table: ValueTable, cursor: Cursor) -> None:
        self.table = table
        self._readers: list[KeysAhead] = cursor.readers
        self._readers.append(self)
        self._is_slow = table.reads_owners
        self._count = _KEYS
        #: Whether rows of the last block used what half of its keys have, or more.
        self._is_wanted = False
        #: The block for which owners are known, and they; whether what it begins with is read.
        self._block: Keys | None = None
        self._owners: list[bytes] = []
        self._has_read = False
        #: Keys of the block; positions in it that are used, and those that were read last.
        self._keys = 0
        self._used: set[int] = set()
        self._read = range(0)

    def begin(self, block: Keys) -> list[bytes]:
        """Begin a block: read now what is needed anyway, with the entries that say how much a key has.

        Returns:
            For :meth:`use`, by key.

        Raises:
            StateError: the store cannot be read.
        """
        self._look_at(block)
        owners = self._owners
        self._keys = len(owners)
        if self._is_slow and self._is_wanted and not self._has_read:
            wanted = [(reader, first) for reader in self._readers if (first := reader.wanted(block))]
            counts = read_together([(reader.table, first) for reader, first in wanted])
            for (reader, _), count in zip(wanted, counts, strict=True):
                reader.note_read(count)
        return owners

    def _look_at(self, block: Keys) -> None:
        if block is not self._block:
            self._block, self._owners = block, block.element_prefixes(self.table)
            self._has_read = False

    def wanted(self, block: Keys) -> list[bytes]:
        """Return the owners that are to be read with what other handles read; none: nothing is, or it was read."""
        if self._block is not None and self._block is not block:
            # It was read for, and no row came to it.
            self._block, self._is_wanted = None, False
            self._adapt()
        if not self._is_wanted or (block is self._block and self._has_read):
            return []
        self._look_at(block)
        self._has_read = True
        first = next((at for at, each in enumerate(self._owners) if not self.table.is_known(each)), None)
        if first is None:
            return []
        self._read = range(first, first)
        return self._owners[first : first + self._count]

    def note_read(self, count: int) -> None:
        """Note that so many of :meth:`wanted` were read."""
        self._read = range(self._read.start, self._read.start + count)

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
        if self.table.is_known(owners[at]):
            return
        if at >= self._read.stop:
            self._adapt()
        (count,) = read_together([(self.table, owners[at : at + self._count])])
        self._read = range(at, at + count)

    def end(self) -> None:
        """End the block: positions mean others."""
        self._block, self._owners = None, []
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
