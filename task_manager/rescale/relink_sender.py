"""An old owner's side of relinking: sends what has changed in key groups since the images of a checkpoint.

See docs/design/0019. Called by the threads that hand groups over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from weir.clock import Clock
from weir.errors import WeirError
from weir.protocol.rescale.relink import (
    AHEAD_BYTES_MAX,
    DELETED_BYTES_MAX,
    SENT_BYTES_MAX,
    RelinkOffer,
    offers,
)
from weir.state.api import StateBackend
from weir.state.placement.changed_keys import ChangesSince
from weir.state.placement.remote import RemoteStateClient
from weir.types import SubtaskId

log = logging.getLogger(__name__)

#: Of one call to the new owner's store.
_WRITE_BYTES = 256 << 10
_READ_KEYS = 512

#: Returns access to the store of a task manager, for a stage's groups with their new epochs.
StateAt = Callable[[int, str, Mapping[int, int]], RemoteStateClient]


@dataclass(frozen=True)
class RelinkedPart:
    """Groups (with their new epochs) of one handover; ``offer`` None: as without relinking."""

    groups: Mapping[int, int]
    offer: RelinkOffer | None
    bytes_sent: int = 0


class RelinkSender:
    """Sends for one deployed job; any thread may call it."""

    def __init__(
        self,
        store: StateBackend,
        state_at: StateAt,
        clock: Clock,
        bytes_max: int = SENT_BYTES_MAX,
        ahead_bytes_max: int = AHEAD_BYTES_MAX,
    ) -> None:
        """``store`` has the groups; of what one call of :meth:`send`, or of :meth:`send_ahead`, sends at most."""
        self._store = store
        self._state_at = state_at
        self._bytes_max = bytes_max
        self._ahead_bytes_max = ahead_bytes_max
        self.clock = clock
        #: By stage: version of its latest rescale, and the checkpoint whose images are meant.
        self._checkpoints: dict[int, tuple[int, int]] = {}
        #: By old owner and group: what was sent ahead in its latest rescale, until the group is handed over.
        self._ahead: dict[tuple[SubtaskId, int], _Ahead] = {}
        #: By old owner and address of the new one: the bytes of that, until they are told.
        self._ahead_bytes: dict[tuple[SubtaskId, str], int] = {}

    def prepare(self, stage_index: int, version: int, checkpoint_id: int) -> None:
        """A rescale begins; 0: nothing can be relinked."""
        self._checkpoints[stage_index] = version, checkpoint_id
        for subtask, group in [each for each in list(self._ahead) if each[0].stage_index == stage_index]:
            del self._ahead[subtask, group]
        for subtask, address in [
            each for each in list(self._ahead_bytes) if each[0].stage_index == stage_index
        ]:
            del self._ahead_bytes[subtask, address]

    def send_ahead(
        self,
        source: SubtaskId,
        version: int,
        address: str,
        groups: Mapping[int, int],
        changed: ChangesSince,
        until_s: float,
    ) -> int:
        """Send what has changed so far, while the old owner goes on: rows wait for the rest only.

        Called when new owners have deleted what they had, before any group is released. Called again, it sends what has
        changed since.

        Args:
            source: the old owner.
            version: of the routing table.
            address: of the new owner's task manager.
            groups: with their new owner epochs.
            changed: by the old owner so far.
            until_s: by the clock; groups that are left then are sent with the handover.

        Returns:
            The bytes that were sent.
        """
        checkpoint_id = self._checkpoint_of(source, version)
        known = self._left(source, checkpoint_id, groups, changed) if checkpoint_id else {}
        if not known:
            return 0
        client = self._state_at(source.stage_index, address, groups)
        sending = _Sending(self._store, client, self._ahead_bytes_max)
        try:
            for group, keys in known.items():
                if self.clock.monotonic_s() >= until_s:
                    break
                sending.add(group, keys, self._ahead.get((source, group)))
            sending.flush()
        except WeirError as error:
            log.warning("nothing is sent ahead of key groups of subtask %s: %s", source, error)
            return 0
        self._ahead_bytes[source, address] = self._ahead_bytes.get((source, address), 0) + sending.sent_bytes
        for group, gone in sending.deleted.items():
            self._ahead[source, group] = _Ahead(changed, gone)
        return sending.sent_bytes

    def _left(
        self, source: SubtaskId, checkpoint_id: int, groups: Mapping[int, int], changed: ChangesSince
    ) -> dict[int, list[bytes]]:
        """Return, by group of which all changes are known, the keys that have changed since what was sent ahead."""
        alike: dict[ChangesSince | None, list[int]] = {}
        for group in groups:
            ahead = self._ahead.get((source, group))
            alike.setdefault(None if ahead is None else ahead.changed, []).append(group)
        known: dict[int, list[bytes]] = {}
        for after, some in alike.items():
            known |= changed.of(checkpoint_id, some, after)
        return known

    def _checkpoint_of(self, source: SubtaskId, version: int) -> int:
        found_version, checkpoint_id = self._checkpoints.get(source.stage_index, (0, 0))
        return checkpoint_id if found_version == version else 0

    def send(
        self,
        source: SubtaskId,
        version: int,
        address: str,
        groups: Mapping[int, int],
        changed: ChangesSince,
    ) -> list[RelinkedPart]:
        """Send what has changed in groups that were released, as far as it is known and not too much; waits.

        Args:
            source: the old owner.
            version: of the routing table.
            address: of the new owner's task manager.
            groups: with their new owner epochs.
            changed: by the old owner.

        Returns:
            Every group once, to be handed over in this order. Bytes that were sent ahead count with the first part.
        """
        checkpoint_id = self._checkpoint_of(source, version)
        known = self._left(source, checkpoint_id, groups, changed) if checkpoint_id else {}
        parts: list[RelinkedPart] = []
        if known:
            sending = _Sending(
                self._store, self._state_at(source.stage_index, address, groups), self._bytes_max
            )
            try:
                for group, keys in known.items():
                    sending.add(group, keys, self._ahead.get((source, group)))
                sending.flush()
                whole = {group: groups[group] for group in sending.deleted}
                sent = sending.sent_bytes
                for part, offer in offers(checkpoint_id, whole, sending.deleted):
                    parts.append(RelinkedPart(part, offer, sent))
                    sent = 0
            except WeirError as error:
                # What was sent does not count then: the new owner deletes it.
                log.warning("key groups of subtask %s are not relinked: %s", source, error)
                parts = []
        for group in groups:
            # It keeps notes.
            self._ahead.pop((source, group), None)
        named = {group for part in parts for group in part.groups}
        if rest := {group: epoch for group, epoch in groups.items() if group not in named}:
            parts.append(RelinkedPart(rest, None))
        ahead_bytes = self._ahead_bytes.pop((source, address), 0)
        return [replace(parts[0], bytes_sent=parts[0].bytes_sent + ahead_bytes), *parts[1:]]


@dataclass(frozen=True)
class _Ahead:
    """What was sent of a group before it was released."""

    #: All that had changed by then.
    changed: ChangesSince
    #: Keys that had none any more.
    deleted: Sequence[bytes]


class _Sending:
    """Entries of several groups, which travel together."""

    def __init__(self, store: StateBackend, client: RemoteStateClient, bytes_max: int) -> None:
        self._store = store
        self._client = client
        self._left_bytes = bytes_max
        self._puts: list[tuple[bytes, bytes]] = []
        self._deletes: list[bytes] = []
        self._gathered_bytes = 0
        self.sent_bytes = 0
        #: By group that was added as a whole: its deleted keys.
        self.deleted: dict[int, list[bytes]] = {}

    def add(self, group: int, keys: Sequence[bytes], ahead: _Ahead | None = None) -> None:
        """Send what these keys have now, if it is not too much; ``ahead``: what was sent of the group before."""
        gone = [] if ahead is None else list(ahead.deleted)
        gone_bytes = sum(map(len, gone))
        for found, absent in self._read(keys):
            size_bytes = sum(len(key) + len(value) for key, value in found)
            gone += absent
            gone_bytes += sum(map(len, absent))
            size_bytes += sum(map(len, absent))
            if size_bytes > self._left_bytes or gone_bytes > DELETED_BYTES_MAX:
                return
            self._left_bytes -= size_bytes
            self._puts += found
            # Some of them may have been sent ahead, also of groups that could not be sent as a whole.
            self._deletes += absent
            self._gathered_bytes += size_bytes
            if self._gathered_bytes >= _WRITE_BYTES:
                self.flush()
        self.deleted[group] = gone

    def flush(self) -> None:
        """Write what has gathered."""
        if self._puts or self._deletes:
            self._client.write(self._puts, self._deletes)
            self.sent_bytes += self._gathered_bytes
            self._puts, self._deletes, self._gathered_bytes = [], [], 0

    def _read(self, keys: Sequence[bytes]) -> Iterator[tuple[list[tuple[bytes, bytes]], list[bytes]]]:
        """Yields entries, and keys that have none."""
        for start in range(0, len(keys), _READ_KEYS):
            chunk = list(keys[start : start + _READ_KEYS])
            values = self._store.get_many(chunk)
            found = [(key, value) for key, value in zip(chunk, values, strict=True) if value is not None]
            yield found, [key for key, value in zip(chunk, values, strict=True) if value is None]
