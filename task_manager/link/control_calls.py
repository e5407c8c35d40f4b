"""What a job on a task manager asks of, and tells, the control plane beside the heartbeat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from weir.rpc.wire import JobIdentity
from weir.types import SubtaskId


class ControlCalls(Protocol):
    """Implemented by ``control_link.ControlLink``; methods may be called from any thread."""

    def locate(self, stage_index: int, groups: Sequence[int]) -> Mapping[int, str]:
        """Where the state of key groups is: address of the store of each.

        Raises:
            ConnectionLostError: the control plane does not answer.
        """
        ...

    def acknowledge(
        self,
        identity: JobIdentity,
        subtask: SubtaskId,
        checkpoint_id: int,
        part_json: bytes,
        failure: str,
        is_wanted: Callable[[], bool],
    ) -> None:
        """Deliver a subtask's part of a checkpoint, or say why there is none (then ``part_json`` is empty).

        Gives up as soon as it is not wanted any more.

        Raises:
            ConnectionLostError: the control plane does not answer.
        """
        ...
