"""Checkpoints that are open for questions: their images, read-only, one cut over all key groups."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from typing_extensions import override

from task_manager.state.job_database import JobDatabase
from weir.clock import Clock
from weir.operators.queries.reading import StoredReading, place_key
from weir.protocol.checkpoints.manifest import GroupPlace, Manifest
from weir.protocol.queries import QueryError, Question
from weir.state.images.image_client import image_address
from weir.state.images.image_stores import Images
from weir.state.tables.broadcast import dict_entries, entries_of_dict
from weir.state.tables.retained import GroupClock, clock_key, retention_cut_ms, unpack_clock
from weir.state.tables.stamps import UNDATED
from weir.state.ttl import Ttl

#: Checkpoints that are open at a time; those that nobody has asked for so long are closed.
OPEN_MAX = 3
IDLE_S = 60.0


class StoredEntries(Protocol):
    """What is read of a checkpoint; see ``RemoteStateClient``."""

    def start_get(self, keys: Sequence[bytes]) -> Callable[[], list[bytes | None]]:
        """Begin to read; the function that is returned waits for the values."""
        ...

    def scan(
        self, start: bytes, stop: bytes, *, prefixes: Sequence[bytes], reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries of a range."""
        ...

    def close(self) -> None:
        """It is needed no longer."""
        ...


class OpenCheckpoint:
    """One checkpoint. Methods may be called from any thread."""

    def __init__(self, manifest: Manifest, images: Images, database: JobDatabase | None = None) -> None:
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
        """See ``StateReading``."""
        found = self._checkpoint.manifest.state_ids.get(state)
        if found is None:
            raise QueryError(503, f"the checkpoint has no state {state} yet: try again")
        return found

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See ``StateReading``; the keys are of one key group."""
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
        """See ``StateReading``."""
        if self._ttl is None or self._now_ms == UNDATED:
            return False
        written_ms = self._since_ms if stamp == UNDATED else stamp
        cut_ms = max(self._now_ms - self._ttl.duration_ms, self._first_ms - 1)
        return UNDATED < written_ms <= cut_ms


class OpenCheckpoints:
    """Those of one job on one task manager. Methods may be called from any thread."""

    def __init__(
        self,
        read_manifest: Callable[[str], Manifest],
        images_beside: Callable[[], Images | None],
        clock: Clock,
        database: JobDatabase | None = None,
    ) -> None:
        """``read_manifest``: of the job's checkpoint store; ``images_beside``: see ``JobStores``."""
        self._database = database
        self._read_manifest = read_manifest
        self._images_beside = images_beside
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[int, OpenCheckpoint] = {}
        self._is_closed = False

    def check_question(self, question: Question, state_id: int) -> None:
        """Called before a question about a range of keys is answered, of whatever moment.

        Raises:
            QueryError: 400: the database that has the state cannot answer it, or may not.
        """
        if self._database is not None:
            self._database.check_question(question, state_id)

    @contextmanager
    def using(self, checkpoint_id: int, manifest_path: str) -> Iterator[OpenCheckpoint]:
        """A checkpoint, which is opened if it is not; without a path it must be open.

        Raises:
            QueryError: 410: it is not open any more; 503: too many are in use.
            CheckpointError: it cannot be read, as it has expired meanwhile.
        """
        with self._lock:
            self._close_idle()
            found = self._open.get(checkpoint_id)
            if found is None:
                found = self._opened(manifest_path)
                self._open[checkpoint_id] = found
            found.uses += 1
        try:
            yield found
        finally:
            with self._lock:
                found.uses -= 1
                found.used_s = self._clock.monotonic_s()
                if self._is_closed and not found.uses:
                    found.close()

    def _opened(self, manifest_path: str) -> OpenCheckpoint:
        if not manifest_path or self._is_closed:
            raise QueryError(410, "the checkpoint of this continuation is not open any more: begin again")
        images = self._images_beside()
        if images is None:
            raise QueryError(409, "the job makes no checkpoints: ask for consistency=latest")
        self._make_room()
        manifest = self._read_manifest(manifest_path)
        images.register(image for part in manifest.parts for image in part.images)
        return OpenCheckpoint(manifest, images, self._database)

    def _close_idle(self) -> None:
        now_s = self._clock.monotonic_s()
        for checkpoint_id, found in list(self._open.items()):
            if not found.uses and now_s - found.used_s > IDLE_S:
                self._open.pop(checkpoint_id).close()

    def _make_room(self) -> None:
        """Close the one that was used longest ago, if there are too many."""
        if len(self._open) < OPEN_MAX:
            return
        unused = [checkpoint_id for checkpoint_id, found in self._open.items() if not found.uses]
        if not unused:
            raise QueryError(503, f"{OPEN_MAX} checkpoints are being read: try again")
        oldest = min(unused, key=lambda checkpoint_id: self._open[checkpoint_id].used_s)
        self._open.pop(oldest).close()

    def tidy(self) -> None:
        """Close those that nobody asks any more: their files take room on the disk."""
        with self._lock:
            self._close_idle()

    def close(self) -> None:
        """Close all that are not in use, the others when they are not any more; the job ends."""
        with self._lock:
            self._is_closed = True
            for found in self._open.values():
                if not found.uses:
                    found.close()
            self._open.clear()
