"""Sends what an owner has cached of key groups to their new owner, in messages that its rows hardly notice."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import grpc

from task_manager.rescale.cached_wire import put_entries
from weir.clock import Clock
from weir.rpc import control_pb2, control_pb2_grpc
from weir.rpc.wire import JobIdentity, handshake_to_proto, subtask_to_proto
from weir.state.tables.cached_entries import CachedPart
from weir.types import SubtaskId

log = logging.getLogger(__name__)

#: Keys of a message: the new owner's rows wait 1 to 2 ms while they are entered.
_KEYS_MAX = 8_192
#: Bound of a message's keys, or of keys and values of any length, in bytes; a single one may be longer.
_BYTES_MAX = 256 << 10
_IN_FLIGHT = 4


@dataclass(frozen=True)
class CopySender:
    """Sends to one new owner what was cached of groups that go to it in one rescale."""

    stub: control_pb2_grpc.TaskManagerStub
    identity: JobIdentity
    target: SubtaskId
    version: int
    clock: Clock
    #: Of one call.
    timeout_s: float
    #: Whether the groups are being handed over; else this is a copy ahead of that.
    at_handover: bool = False
    #: No call takes longer than until then.
    deadline_s: float = float("inf")

    def send(
        self,
        groups: Mapping[int, int],
        cached: Sequence[CachedPart],
        *,
        anew: Sequence[int] = (),
        complete: bool = False,
    ) -> bool:
        """Send entries of groups (with their new epochs); False: the new owner did not take all of them.

        Returns when all are entered. What came of the groups ``anew`` before is void. ``complete``: nothing more
        of these groups follows.
        """
        waiting: deque[grpc.Future[control_pb2.TakeCopyReply]] = deque()
        try:
            if anew:
                first = self._request({group: groups[group] for group in anew})
                first.anew = True
                self.stub.TakeCopy(first, timeout=self._timeout_s())
            for request in self._requests(groups, cached):
                if len(waiting) == _IN_FLIGHT:
                    waiting.popleft().result()
                waiting.append(self.stub.TakeCopy.future(request, timeout=self._timeout_s()))
            while waiting:
                waiting.popleft().result()
            if complete:
                last = self._request(groups)
                last.complete = True
                self.stub.TakeCopy(last, timeout=self._timeout_s())
        except (grpc.RpcError, ValueError) as error:
            reason = error.details() if isinstance(error, grpc.RpcError) else error
            log.info("subtask %s did not take cached state of key groups: %s", self.target, reason)
            return False
        return True

    def _timeout_s(self) -> float:
        return max(0.0, min(self.timeout_s, self.deadline_s - self.clock.monotonic_s()))

    def _request(self, groups: Mapping[int, int]) -> control_pb2.TakeCopyRequest:
        return control_pb2.TakeCopyRequest(
            handshake=handshake_to_proto(self.identity),
            target=subtask_to_proto(self.target),
            routing_version=self.version,
            at_handover=self.at_handover,
            groups=[
                control_pb2.OwnedGroup(key_group=group, owner_epoch=epoch) for group, epoch in groups.items()
            ],
        )

    def _requests(
        self, groups: Mapping[int, int], cached: Sequence[CachedPart]
    ) -> Iterator[control_pb2.TakeCopyRequest]:
        for entries in cached:
            for piece in entries.pieces(_KEYS_MAX, _BYTES_MAX):
                request = self._request(groups)
                put_entries(request, piece)
                yield request
