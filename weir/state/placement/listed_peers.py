"""Keys and values of any length at several stores: one call for each peer, while the local store is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from weir.state.api import StateBackend
from weir.state.layout import GROUP_OF
from weir.state.placement.group_places import MigratingGroup, Place
from weir.state.placement.remote import RemoteStateClient


class ListedPeers:
    """The local store and the peers of one subtask. Not thread-safe: the lock of the subtask's state guards it."""

    def __init__(self, local: StateBackend, client: Callable[[str], RemoteStateClient]) -> None:
        self._local = local
        self._client = client
        #: Keys read from and written to peers, and bytes of them and their values.
        self.gets = self.puts = self.bytes = 0

    def get(self, keys: Sequence[bytes], places: Mapping[bytes, Place]) -> list[bytes | None]:
        """Values in the order of ``keys``, whose groups have ``places``; what had to be fetched is local afterwards."""
        at = [places[group] for group in map(GROUP_OF, keys)]
        remote: dict[str, list[int]] = {}
        here: list[int] = []
        for index, place in enumerate(at):
            if isinstance(place, str):
                remote.setdefault(place, []).append(index)
            else:
                here.append(index)
        values: list[bytes | None] = [None] * len(keys)
        local_keys = [keys[index] for index in here]
        for index, value in zip(here, self._fetch(keys, remote, local_keys, values), strict=True):
            values[index] = value
        missing: dict[str, list[int]] = {}
        for index in here:
            place = at[index]
            if (
                values[index] is None
                and isinstance(place, MigratingGroup)
                and keys[index] not in place.tombstones
            ):
                place.wanted += 1
                missing.setdefault(place.address, []).append(index)
        if missing:
            self._fetch(keys, missing, [], values)
            fetched = [(keys[index], values[index]) for indexes in missing.values() for index in indexes]
            # What is absent at the peer stays absent here.
            puts = [(key, value) for key, value in fetched if value is not None]
            if puts:
                self._local.write(puts)
        return values

    def write(
        self,
        puts: Sequence[tuple[bytes, bytes]],
        deletes: Sequence[bytes],
        places: Mapping[bytes, Place],
    ) -> None:
        """Apply puts, then deletes, to keys whose groups have ``places``; atomic within each store."""
        # The store of a key: a peer's address, or None for the local one.
        stores = {group: place if isinstance(place, str) else None for group, place in places.items()}
        store_puts: dict[str | None, list[tuple[bytes, bytes]]] = {None: []}
        store_deletes: dict[str | None, list[bytes]] = {None: []}
        for entry in puts:
            store_puts.setdefault(stores[entry[0][:2]], []).append(entry)
        for key in deletes:
            store_deletes.setdefault(stores[key[:2]], []).append(key)
        for address in (store_puts | store_deletes).keys() - {None}:
            if address is not None:
                there, gone = store_puts.get(address, []), store_deletes.get(address, [])
                self._client(address).write(there, gone)
                self.puts += len(there)
                self.bytes += bytes_of(there)
        self._local.write(store_puts[None], store_deletes[None])
        for key, _ in store_puts[None]:
            if isinstance(place := places[key[:2]], MigratingGroup):
                place.tombstones.discard(key)
        for key in store_deletes[None]:
            if isinstance(place := places[key[:2]], MigratingGroup):
                place.tombstones.add(key)

    def count_fetched(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Account for entries that a pull has fetched."""
        self.gets += len(entries)
        self.bytes += bytes_of(entries)

    def _fetch(
        self,
        keys: Sequence[bytes],
        remote: Mapping[str, list[int]],
        local_keys: Sequence[bytes],
        values: list[bytes | None],
    ) -> list[bytes | None]:
        """Fill in values at the positions that each peer has; returns the local values of ``local_keys``."""
        if not local_keys and len(remote) == 1:
            # Nothing to overlap with; the plain call is the faster one.
            ((address, indexes),) = remote.items()
            wanted = [keys[index] for index in indexes]
            self._fill(values, indexes, wanted, self._client(address).get_many(wanted))
            return []
        waiting = []
        for address, indexes in remote.items():
            wanted = [keys[index] for index in indexes]
            waiting.append((indexes, wanted, self._client(address).start_get(wanted)))
        local_values = self._local.get_many(local_keys) if local_keys else []
        for indexes, wanted, wait in waiting:
            self._fill(values, indexes, wanted, wait())
        return local_values

    def _fill(
        self,
        values: list[bytes | None],
        indexes: Sequence[int],
        wanted: Sequence[bytes],
        answers: Sequence[bytes | None],
    ) -> None:
        for index, value in zip(indexes, answers, strict=True):
            values[index] = value
        self.gets += len(indexes)
        self.bytes += sum(map(len, wanted)) + sum(len(value) for value in answers if value)


def bytes_of(entries: Sequence[tuple[bytes, bytes]]) -> int:
    """Bytes of keys and values."""
    return sum(len(key) + len(value) for key, value in entries)
