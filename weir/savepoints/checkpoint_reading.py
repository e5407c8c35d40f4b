"""A checkpoint that is read: its images, read-only, one cut over all key groups."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from typing_extensions import override

from weir.clock import Clock
from weir.operators.queries.reading import StoredReading, place_key
from weir.protocol.checkpoints.manifest import GroupPlace, Manifest
from weir.protocol.queries import QueryError
from weir.state.images.image_client import image_address
from weir.state.images.image_stores import Images
from weir.state.placement.remote import RemoteStateClient
from weir.state.tables.broadcast import dict_entries, entries_of_dict
from weir.state.tables.retained import GroupClock, clock_key, retention_cut_ms, unpack_clock
from weir.state.tables.stamps import UNDATED
from weir.state.ttl import Ttl


class StoredEntries(Protocol):
    """What is read of a checkpoint; see ``RemoteStateClient``."""

    def start_get(self, keys: Sequence[bytes]) -> Callable[[], list[bytes | None]]:
        """Begin to read; the function that is returned waits for the values."""

    def scan(
        self, start: bytes, stop: bytes, *, prefixes: Sequence[bytes], reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries of a range."""

    def close(self) -> None:
        """Close it; it is needed no longer."""


class Database(Protocol):
    """A database that has the state, of which images have the changes that were not applied to it."""

    def at_checkpoint(self, image: RemoteStateClient, checkpoint_id: int) -> StoredEntries:
        """What a checkpoint has, of the image and the database together."""


class OpenCheckpoint:
    """A checkpoint with its images, opened as they are asked for. Methods may be called from any thread."""

    def __init__(self, manifest: Manifest, images: Images, database: Database | None = None) -> None:
        """``images`` are those of the manifest; closed with this object; ``database`` has the rest."""
        self.manifest = manifest
        self._database = database
        self._images = images
        self._clients: dict[str, StoredEntries] = {}
        self._lock = threading.Lock()
        self.uses = 0
        self.used_s = 0.0

    def places(self, step: str) -> Mapping[int, GroupPlace]:
        """Where the state of a step's key groups is."""
        stages = {stage for stage, names in self.manifest.operator_names.items() if step in names}
        return {
            group: place
            for part in sorted(self.manifest.parts, key=lambda part: part.finished)
            if part.subtask.stage_index in stages
            for group, place in part.groups.items()
        }

    def client(self, place: GroupPlace) -> StoredEntries:
        """Access to the images of a key group.

        Raises:
            CheckpointError: they cannot be fetched, as they have expired meanwhile.
        """
        address = image_address(place.image_id, place.base_image_id)
        with self._lock:
            if address not in self._clients:
                image = self._images.connect(address)
                database = self._database
                self._clients[address] = (
                    image if database is None else database.at_checkpoint(image, self.manifest.checkpoint_id)
                )
            return self._clients[address]

    def close(self) -> None:
        """Close the images."""
        for client in self._clients.values():
            client.close()
        self._images.close()


class CheckpointReading(StoredReading):
    """Implements ``weir.operators.queries.reading.StateReading`` over a checkpoint."""

    def __init__(
        self,
        checkpoint: OpenCheckpoint,
        step: str,
        state: str,
        ttl: Ttl | None,
        clock: Clock,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """``check``: see ``RangeReading.check``."""
        self.check = check
        self._checkpoint = checkpoint
        self._places = checkpoint.places(step)
        self._ttl = ttl
        self._tombstones = {
            group: frozenset(bytes.fromhex(key) for key in place.tombstones)
            for group, place in self._places.items()
        }
        self.watermark_ms = self._since_ms = UNDATED
        #: Entries of earlier times had expired, whatever the TTL had been before.
        self._first_ms = UNDATED
        #: A dict that is no entries in a store; see ``weir.state.tables.broadcast``.
        self._items: dict[str, Any] | None = None
        #: By number of the state: clocks of its key groups, and the entries that are places of windows.
        self._clocks: dict[int, dict[int, GroupClock]] = {}
        self._window_places: dict[int, dict[int, bytes | None]] = {}
        since = []
        for part in checkpoint.manifest.parts:
            kept = part.operators.get(step)
            if isinstance(kept, dict) and "items" in kept:
                self._items = kept["items"]
            times = kept.get("times") if isinstance(kept, dict) else None
            if times:
                if times["watermark_ms"] is not None:
                    self.watermark_ms = max(self.watermark_ms, times["watermark_ms"])
                if state in times["since_ms"]:
                    since.append(times["since_ms"][state])
                self._first_ms = max(self._first_ms, times.get("first_ms", {}).get(state, UNDATED))
        self._since_ms = min(since, default=UNDATED)
        is_processing = ttl is not None and ttl.time == "processing"
        self._now_ms = clock.now_us() // 1000 if is_processing else self.watermark_ms

    def number_of(self, state: str) -> int:
        """Return the number in the checkpoint; see ``StateReading``."""
        found = self._checkpoint.manifest.state_ids.get(state)
        if found is None:
            raise QueryError(503, f"the checkpoint has no state {state} yet: try again")
        return found

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Read the values of keys of one key group; see ``StateReading``."""
        if not keys:
            return []
        if self._items is not None:
            return entries_of_dict(self._items, keys)
        group = int.from_bytes(keys[0][:2], "big")
        place = self._places.get(group)
        if place is None:
            return [None] * len(keys)
        found = self._checkpoint.client(place).start_get(list(keys))()
        gone = self._tombstones[group]
        return [None if key in gone else value for key, value in zip(keys, found, strict=True)]

    @override
    def cut_ms(self, group: int, state_id: int, retention_ms: int) -> int:
        known = self._clocks.setdefault(state_id, {})
        if group not in known:
            found = self._of_groups(clock_key, state_id, self._read_with(group, known))
            known |= {each: unpack_clock(data) for each, data in found.items()}
        return retention_cut_ms(known[group], self.watermark_ms, retention_ms, self._first_ms)

    def know_place(self, group: int, state_id: int, data: bytes | None) -> None:
        """Keep the place; see ``RangeReading``."""
        self._window_places.setdefault(state_id, {})[group] = data

    def _stored_place(self, group: int, state_id: int) -> bytes | None:
        """Read the place of a group; see ``StoredReading``."""
        known = self._window_places.setdefault(state_id, {})
        if group not in known:
            known |= self._of_groups(place_key, state_id, self._read_with(group, known))
        return known[group]

    def _read_with(self, group: int, known: Collection[int]) -> set[int]:
        """The key groups that are read with one: one key needs its own, a range those of all, read together."""
        return {group, *self._places} if known else {group}

    def _of_groups(
        self, key_of: Callable[[int, int], bytes], state_id: int, groups: Collection[int]
    ) -> dict[int, bytes | None]:
        """What some key groups have under a key of a state."""
        by_client: dict[StoredEntries, list[int]] = {}
        for group in groups:
            if group in self._places:
                by_client.setdefault(self._checkpoint.client(self._places[group]), []).append(group)
        begun = [
            (own, client.start_get([key_of(group, state_id) for group in own]))
            for client, own in by_client.items()
        ]
        found: dict[int, bytes | None] = dict.fromkeys(groups)
        for own, wait in begun:
            found |= zip(own, wait(), strict=True)
        return found

    @override
    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        group = int.from_bytes(start[:2], "big")
        if self._items is not None:
            entries = dict_entries(self._items, int.from_bytes(start[2:4], "big"))
            found = [entry for entry in entries if start <= entry[0] < stop]
            return reversed(found) if reverse else iter(found)
        place = self._places.get(group)
        if place is None:
            return iter(())
        gone = self._tombstones[group]
        scanned = self._checkpoint.client(place).scan(start, stop, prefixes=[start[:4]], reverse=reverse)
        return (entry for entry in scanned if entry[0] not in gone) if gone else scanned

    def is_expired(self, stamp: int) -> bool:
        """Judge by the time of the checkpoint; see ``StateReading``."""
        if self._ttl is None or self._now_ms == UNDATED:
            return False
        written_ms = self._since_ms if stamp == UNDATED else stamp
        cut_ms = max(self._now_ms - self._ttl.duration_ms, self._first_ms - 1)
        return UNDATED < written_ms <= cut_ms
