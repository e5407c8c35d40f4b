"""Decides for a replica of a partition: what it promises, whether it leads, what is committed. A broker has one each.

A commit needs a majority that includes the leader, and an entry of the leader's own epoch: only then can no other log
win an election without it. The first entry of an epoch so seals all epochs before it (``next_anchors.md`` 2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from weir.errors import InvalidTransitionError
from weir.protocol.log.lineage import Lineage


def majority(replicas: int) -> int:
    """How many of so many replicas are more than half of them."""
    return replicas // 2 + 1


@dataclass
class Follower:
    """What a leader knows of another replica, since the stream to it began."""

    #: Of its data: another one has lost what the first had acknowledged.
    incarnation: int
    #: All before it is there, as safe as the topic's durability says, and equal to the leader's.
    durable_offset: int = 0


class Replica:
    """The deciding part of a replica. The caller stores entries and promises, and tells of it here."""

    def __init__(self, broker_id: int, incarnation: int, replicas: int) -> None:
        """``replicas``: how many there are to be, this one included; of a new, empty one."""
        self.broker_id = broker_id
        self.incarnation = incarnation
        self.replicas = replicas
        self.lineage = Lineage()
        #: Offset behind the last entry, and behind the last one that is as safe as the durability says.
        self.end_offset = 0
        self.durable_offset = 0
        self.commit_offset = 0
        #: Epoch under which the latter was learned last.
        self._commit_epoch = 0
        #: Lower epochs are refused; the caller has stored it before it acts on it.
        self.promised_epoch = 0
        #: Told to the controller since this process began: only then may it be named leader of that epoch.
        self.voted_epoch = 0
        #: 0: it does not lead.
        self.leading_epoch = 0
        self._opening_end = 0
        self.members: dict[int, int] = {}
        #: Number of the set of replicas that it counts by, and where the first entry ends that this leader wrote since.
        self.config = 0
        self._config_end = 0
        self.followers: dict[int, Follower] = {}

    # -- what is stored

    def recovered(self, lineage: Iterable[tuple[int, int]], end_offset: int, promised_epoch: int) -> None:
        """Begin with what was found on disk; all of it counts as durable."""
        self.lineage = Lineage(list(lineage))
        self.end_offset = self.durable_offset = end_offset
        self.promised_epoch = promised_epoch

    def appended(self, epoch: int, offset: int, end_offset: int) -> None:
        """Note an entry at the end of the log."""
        self.check_follows(offset)
        self.lineage.add(epoch, offset)
        self.end_offset = end_offset

    def check_follows(self, offset: int) -> None:
        """Refuse an entry that is not the next one.

        Raises:
            InvalidTransitionError: it would overwrite something or leave a gap.
        """
        if offset != self.end_offset:
            raise InvalidTransitionError(
                f"an entry at offset {offset} does not follow a log that ends at {self.end_offset}"
            )

    def made_durable(self, offset: int) -> None:
        """Note that all before an offset is as safe as the durability says."""
        self.durable_offset = max(self.durable_offset, min(offset, self.end_offset))
        self._advance()

    # -- promises and leadership

    def promise(self, epoch: int) -> bool:
        """Refuse lower epochs from now on; True: it is news, which the caller stores before it tells anybody."""
        if epoch <= self.promised_epoch:
            return False
        self.promised_epoch = epoch
        self.leading_epoch = 0
        self.followers.clear()
        return True

    def vote(self, epoch: int) -> None:
        """Note that what this replica has is reported for an election; the promise is stored."""
        if epoch == self.promised_epoch:
            self.voted_epoch = epoch

    def may_lead(self, epoch: int, members: Mapping[int, int]) -> bool:
        """Whether this replica, named leader of an epoch, is to begin it.

        Not after a restart between vote and election: what it reported may be gone. Not without a vote.
        """
        return (
            self.leading_epoch == 0
            and epoch == self.promised_epoch == self.voted_epoch
            and epoch > self.lineage.last_epoch
            and members.get(self.broker_id) == self.incarnation
        )

    def lead(self, epoch: int, members: Mapping[int, int], replicas: int, config: int) -> None:
        """Begin an epoch; the caller appends its first entry, a control batch, and tells of it.

        Args:
            epoch: was promised.
            members: who votes and counts, by the incarnation of the data.
            replicas: how many there are to be.
            config: number of this set of replicas.
        """
        if not self.may_lead(epoch, members):
            raise InvalidTransitionError(f"broker {self.broker_id} may not lead epoch {epoch}")
        self.leading_epoch = epoch
        self._opening_end = self._config_end = self.end_offset + 1
        self.followers.clear()
        self.replicas, self.config = replicas, config
        self.set_members(members)

    def set_members(self, members: Mapping[int, int]) -> None:
        """Take over who votes and counts, by the incarnation of the data."""
        self.members = dict(members)
        self._advance()

    def reconfigure(self, members: Mapping[int, int], replicas: int, config: int) -> None:
        """Count by another set of replicas from now on; a leader appends a control batch then, and tells of it."""
        self.replicas, self.config = replicas, config
        self._config_end = self.end_offset + 1
        self.set_members(members)

    @property
    def settled_config(self) -> int:
        """Number of the set of replicas by which this leader has committed an entry that it wrote since; 0: none.

        All that was committed by the set before it is on a majority of this one then.
        """
        return self.config if self.leading_epoch and self.commit_offset >= self._config_end else 0

    # -- the leader's side of replication

    def follower_opened(
        self, broker_id: int, incarnation: int, lineage: Iterable[tuple[int, int]], end_offset: int
    ) -> int:
        """Begin a stream to a follower; returns where it has to cut its log."""
        cut = self.lineage.agreement(self.end_offset, lineage, end_offset)
        self.followers[broker_id] = Follower(incarnation)
        return cut

    def follower_has(self, broker_id: int, durable_offset: int) -> None:
        """Note what a follower has made durable, of what this leader has sent."""
        follower = self.followers.get(broker_id)
        if self.leading_epoch and follower is not None:
            follower.durable_offset = max(follower.durable_offset, min(durable_offset, self.end_offset))
            self._advance()

    def follower_lost(self, broker_id: int) -> None:
        """End of the stream to a follower; what it had still counts for what is committed already."""
        self.followers.pop(broker_id, None)

    def caught_up(self) -> dict[int, int]:
        """Followers that are no members yet and have all that is committed: broker to incarnation."""
        if not self.leading_epoch or self.commit_offset < self._opening_end:
            return {}
        return {
            broker_id: follower.incarnation
            for broker_id, follower in self.followers.items()
            if self.members.get(broker_id) != follower.incarnation
            and follower.durable_offset >= self.commit_offset
        }

    @property
    def serves(self) -> bool:
        """Whether it leads, and all that earlier epochs committed is committed in its own."""
        return self.leading_epoch != 0 and self.commit_offset >= self._opening_end

    def _advance(self) -> None:
        if not self.leading_epoch:
            return
        counted = sorted(
            (
                follower.durable_offset
                for broker_id, follower in self.followers.items()
                if self.members.get(broker_id) == follower.incarnation
            ),
            reverse=True,
        )
        needed = majority(self.replicas) - 1
        if len(counted) < needed:
            return
        commit = min(self.durable_offset, counted[needed - 1]) if needed else self.durable_offset
        if commit >= self._opening_end:
            self.commit_offset = max(self.commit_offset, commit)
            self._commit_epoch = self.leading_epoch

    # -- the follower's side

    def accepts(self, epoch: int) -> bool:
        """Whether a leader of this epoch may write here; the caller promises it first if it is higher."""
        return epoch >= self.promised_epoch

    def cut(self, offset: int) -> None:
        """Forget what lies at or behind an offset, since the leader has something else there, or nothing.

        Raises:
            InvalidTransitionError: something committed would be lost; nothing is changed then.
        """
        if offset >= self.end_offset:
            return
        if offset < self.commit_offset:
            raise InvalidTransitionError(
                f"broker {self.broker_id} is to cut its log at offset {offset}, but all before "
                f"{self.commit_offset} is committed"
            )
        self.lineage.truncate(offset)
        self.end_offset = offset
        self.durable_offset = min(self.durable_offset, offset)

    def began_at(self, lineage: Iterable[tuple[int, int]], offset: int) -> None:
        """Begin anew, empty, at an offset before which the leader keeps nothing any more."""
        self.lineage = Lineage(list(lineage))
        self.end_offset = self.durable_offset = offset

    def learn_commit(self, offset: int) -> None:
        """Take over how far the leader says that all is committed."""
        if not self.leading_epoch:
            self.commit_offset = max(self.commit_offset, min(offset, self.end_offset))
            self._commit_epoch = self.promised_epoch

    def loss_accepted(self, epoch: int) -> None:
        """An operator has said that a majority is lost: what was committed before this epoch may be gone.

        So a replica that was only cut off, and knows of more, lets the leader of that epoch cut it off.
        """
        if self._commit_epoch < epoch:
            self.commit_offset = 0
