"""An old owner's side of relinking: sends what has changed in key groups since the images of a checkpoint.

See docs/design/0019. Called by the threads that hand groups over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from weir.errors import WeirError
from weir.protocol.rescale.relink import DELETED_BYTES_MAX, SENT_BYTES_MAX, RelinkOffer, offers
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
    """One for each deployed job that relinks; any thread may call it."""

    def __init__(
        self, store: StateBackend, state_at: StateAt, bytes_max: int = SENT_BYTES_MAX
    ) -> None:
        """``store`` has the groups; ``bytes_max``: of what one call of :meth:`send` sends."""
        self._store = store
        self._state_at = state_at
        self._bytes_max = bytes_max
        #: By stage: version of its latest rescale, and the checkpoint whose images are meant.
        self._checkpoints: dict[int, tuple[int, int]] = {}

    def prepare(self, stage_index: int, version: int, checkpoint_id: int) -> None:
        """A rescale begins; 0: nothing can be relinked."""
        self._checkpoints[stage_index] = version, checkpoint_id

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
            Every group once, to be handed over in this order.
        """
        found_version, checkpoint_id = self._checkpoints.get(source.stage_index, (0, 0))
        known = changed.of(checkpoint_id, groups) if checkpoint_id and found_version == version else {}
        parts: list[RelinkedPart] = []
        if known:
            sending = _Sending(self._store, self._state_at(source.stage_index, address, groups), self._bytes_max)
            try:
                for group, keys in known.items():
                    sending.add(group, keys)
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
        named = {group for part in parts for group in part.groups}
        rest = {group: epoch for group, epoch in groups.items() if group not in named}
        return [*parts, *([RelinkedPart(rest, None)] if rest else [])]


class _Sending:
    """Entries of several groups, which travel together."""

    def __init__(self, store: StateBackend, client: RemoteStateClient, bytes_max: int) -> None:
        self._store = store
        self._client = client
        self._left_bytes = bytes_max
        self._puts: list[tuple[bytes, bytes]] = []
        self._puts_bytes = 0
        self.sent_bytes = 0
        #: By group that was added as a whole: its deleted keys.
        self.deleted: dict[int, list[bytes]] = {}

    def add(self, group: int, keys: Sequence[bytes]) -> None:
        """Send what these keys have now, if it is not too much."""
        gone: list[bytes] = []
        gone_bytes = 0
        for found, absent in self._read(keys):
            size_bytes = sum(len(key) + len(value) for key, value in found)
            gone += absent
            gone_bytes += sum(map(len, absent))
            if size_bytes > self._left_bytes or gone_bytes > DELETED_BYTES_MAX:
                return
            self._left_bytes -= size_bytes
            self._puts += found
            self._puts_bytes += size_bytes
            if self._puts_bytes >= _WRITE_BYTES:
                self.flush()
        self.deleted[group] = gone

    def flush(self) -> None:
        """Write what has gathered."""
        if self._puts:
            self._client.write(self._puts)
            self.sent_bytes += self._puts_bytes
            self._puts, self._puts_bytes = [], 0

    def _read(self, keys: Sequence[bytes]) -> Iterator[tuple[list[tuple[bytes, bytes]], list[bytes]]]:
        """Yields entries, and keys that have none."""
        for start in range(0, len(keys), _READ_KEYS):
            chunk = list(keys[start : start + _READ_KEYS])
            values = self._store.get_many(chunk)
            found = [(key, value) for key, value in zip(chunk, values, strict=True) if value is not None]
            yield found, [key for key, value in zip(chunk, values, strict=True) if value is None]
