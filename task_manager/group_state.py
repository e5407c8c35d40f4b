"""The keyed state of one subtask's operators, by key group: what a rescale flushes, gives away and takes over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from task_manager.job_state import Adoption
from weir.operators.base import Operator
from weir.state.hybrid import HybridBackend
from weir.state.image_client import is_image

#: Keys that a new owner fetches before everything else, at most.
HOT_KEYS_MAX = 20_000


class SubtaskGroupState:
    """Implements ``ownership.GroupState``; called by the subtask's thread."""

    def __init__(
        self,
        backend: HybridBackend,
        state_ids: Sequence[int],
        owned: Mapping[int, int],
        on_adopt: Callable[[SubtaskGroupState], None],
        adoptions: Sequence[Adoption] = (),
    ) -> None:
        """``owned`` are the groups (with epochs) at the start; ``on_adopt`` is called when others came.

        ``adoptions`` says of some of them where their state is; that of the others is in the own store.
        """
        #: What the operators read and write.
        self.backend = backend
        #: Numbers of the operators' states in the store.
        self.state_ids = tuple(state_ids)
        self._operators: Sequence[Operator] = ()
        self._on_adopt = on_adopt
        #: Most wanted keys of groups to be given away, made before the handover.
        self._hot_keys: list[bytes] = []
        #: Most wanted keys of groups that came, until somebody fetches them.
        self.wanted_keys: list[bytes] = []
        self._is_restoring = bool(adoptions)
        elsewhere = {group for adoption in adoptions for group in adoption.groups}
        backend.adopt({group: epoch for group, epoch in owned.items() if group not in elsewhere})
        for adoption in adoptions:
            adoption.carry_out(backend, owned)

    def bind(self, operators: Sequence[Operator]) -> None:
        """Set the subtask's operators; called once, before its thread starts."""
        self._operators = operators
        # Groups of an image that the job is restored from.
        self._on_adopt(self)

    def restoring_groups(self) -> int:
        """Groups whose state still comes from a checkpoint; called by the heartbeat."""
        if self._is_restoring:
            left = sum(is_image(migrating.address) for migrating in self.backend.migrating())
            self._is_restoring = left > 0
            return left
        return 0

    def flush_groups(self, groups: Iterable[int]) -> None:
        """Write dirty entries of groups that will be given away, and note which of their keys are hot."""
        listed = list(groups)
        self._hot_keys = []
        for operator in self._operators:
            operator.flush_groups(listed)
            self._hot_keys += operator.hot_keys(listed, HOT_KEYS_MAX - len(self._hot_keys))

    def release_groups(self, groups: Iterable[int]) -> dict[int, str]:
        """Write dirty entries of these groups, and forget the groups; gives where the state of each is."""
        listed = list(groups)
        for operator in self._operators:
            operator.release_groups(listed)
        return self.backend.release(listed)

    def take_hot_keys(self, groups: Iterable[int]) -> list[bytes]:
        """The most wanted keys of these groups, as noted before the handover."""
        wanted = {group.to_bytes(2, "big") for group in groups}
        return [key for key in self._hot_keys if key[:2] in wanted]

    def adopt_groups(self, groups: Mapping[int, int], location: str) -> str:
        """Own these groups (with owner epochs) from now on; their state is in the store at ``location``.

        Gives where it is in truth: here, if the stage keeps no state.
        """
        place = location if self.state_ids else self.backend.address
        self.backend.adopt(groups, place)
        for operator in self._operators:
            operator.adopt_groups(groups)
        self._on_adopt(self)
        return place
