"""Who leads a partition: decided from reports of brokers, and from a record that is stored before anybody is told.

Each take-over gives the next epoch to a majority of the members, which promise to refuse lower ones and say what they
have; the one with the latest (epoch, end) leads. So everything that a majority has acknowledged is in its log. A
replica that lost data comes under another incarnation, which has no vote until its leader has filled it again
(``next_anchors.md`` 2, amnesia).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from weir.protocol.log.replica import majority

#: Reports of brokers for which a planned election waits for more votes than it needs.
_PATIENCE = 6


@dataclass(frozen=True)
class Report:
    """What a broker says of its replica of one partition."""

    incarnation: int
    promised_epoch: int
    last_epoch: int
    end_offset: int
    #: 0: it does not lead.
    leading_epoch: int = 0
    #: If it leads: followers that have all that is committed, and the incarnation of their data.
    caught_up: Mapping[int, int] = field(default_factory=dict)
    commit_offset: int = 0
    #: If it leads: number of the set of replicas that it has committed an entry by; 0: of none yet.
    settled_config: int = 0
    #: Its disk is full, or broken: another one should lead, if it can.
    cannot_write: bool = False

    @property
    def extent(self) -> tuple[int, int]:
        """How much it has: of two logs the one with the greater extent has all that either has acknowledged."""
        return self.last_epoch, self.end_offset


@dataclass
class PartitionRecord:
    """What outlives the controller, of one partition."""

    topic: str
    partition: int
    #: Brokers in order of preference.
    replicas: list[int]
    #: Those that vote and count, by the incarnation of their data; empty until all replicas exist.
    members: dict[int, int] = field(default_factory=dict)
    #: Only grows. 0: the partition was never led.
    epoch: int = 0
    #: 0: nobody leads; the members are to promise the epoch.
    leader: int = 0
    #: Grows whenever ``replicas`` gains or loses one.
    config: int = 1
    #: What ``replicas`` are to become; empty: they stay.
    target: list[int] = field(default_factory=list)
    #: Of the last :meth:`PartitionControl.accept_loss`: its broker, what that had, and the epoch that began with it.
    #: What was committed before, and that broker did not have, is lost. 0: nothing was ever lost.
    loss_broker: int = 0
    loss_end_offset: int = 0
    loss_epoch: int = 0

    @property
    def learner(self) -> int:
        """Broker that is filled to become a replica, and does not count yet; 0: none."""
        missing = [each for each in self.target if each not in self.replicas]
        return missing[0] if missing and len(self.replicas) <= len(self.target) else 0

    def to_json(self) -> dict[str, Any]:
        """Return it in values of JSON."""
        return asdict(self) | {"members": {str(key): value for key, value in self.members.items()}}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> PartitionRecord:
        """Read what :meth:`to_json` returned."""
        members = {int(key): value for key, value in values["members"].items()}
        return cls(**{**values, "members": members})


class PartitionControl:
    """Decides for one partition. The controller stores the record whenever a call returns True, and tells it then."""

    def __init__(self, record: PartitionRecord) -> None:
        """Begin with a record.

        A leader that it names may have ended since: if its next report does not say that it leads, it has.
        """
        self.record = record
        self._has_led = True
        #: Whether the present election is to move leadership, and how many decisions it still waits for the votes.
        self._is_planned = False
        self._patience = 0

    def broker_lost(self, broker_id: int) -> bool:
        """Take over from a broker that is gone, or whose process is another one; True: the record has changed."""
        if self.record.leader != broker_id:
            return False
        return self._begin_election()

    def decide(self, reports: Mapping[int, Report], load: Mapping[int, int]) -> bool:
        """Look at the latest report of each live broker; True: the record has changed.

        Args:
            reports: of those that live and have the partition.
            load: how many partitions each broker leads; of equal logs the one with the fewest wins.
        """
        record = self.record
        if not record.epoch:
            return self._found(reports)
        if record.leader:
            return self._watch_leader(reports.get(record.leader))
        return self._elect(reports, load)

    def _found(self, reports: Mapping[int, Report]) -> bool:
        """Begin the first election once every replica is there: from then on, an empty one has lost something."""
        record = self.record
        if not all(broker_id in reports for broker_id in record.replicas):
            return False
        record.members = {broker_id: reports[broker_id].incarnation for broker_id in record.replicas}
        return self._begin_election()

    def _begin_election(self, *, is_planned: bool = False) -> bool:
        self.record.epoch += 1
        self.record.leader = 0
        self._has_led = False
        self._is_planned, self._patience = is_planned, _PATIENCE if is_planned else 0
        return True

    # -- another set of replicas

    def rearrange(self, target: Sequence[int]) -> bool:
        """Ask for other replicas, or another order of them; True: the record has changed.

        Each step gains or loses one, so that majorities before and after it have a broker in common (Ongaro's
        dissertation on Raft, 4.1); the next one begins when the leader has committed something by the last one.
        """
        target = list(target)
        if target == (self.record.target or self.record.replicas):
            return False
        self.record.target = target if target != self.record.replicas else []
        return True

    def accept_loss(self, broker_id: int, reports: Mapping[int, Report]) -> str:
        """Let one replica alone be the partition; the others are filled from it, those that live first.

        Only an operator can say that a majority will not come back. If it does, it has another set of replicas, and
        what it has beyond this replica is cut off. No replica that is there may have more: a wrong id would lose that.
        Safe to repeat: while nobody else leads, nothing changes.

        Returns:
            Why this is not possible, and nothing has changed; "": it has, and the record is to be stored.
        """
        record = self.record
        if broker_id not in record.replicas or broker_id not in reports:
            found = sorted(reports.keys() & set(record.replicas))
            return f"broker {broker_id} has no replica that is there; the replicas that are there: {found or 'none'}"
        alive = sum(
            record.members.get(each) == report.incarnation
            for each, report in reports.items()
            if each in record.replicas
        )
        if alive >= majority(len(record.replicas)):
            if (record.loss_broker, record.loss_epoch) == (broker_id, record.epoch):
                # The answer to the first call has not come.
                return ""
            before = (
                f" since a loss was accepted, with what broker {record.loss_broker} had, up to offset "
                f"{record.loss_end_offset}"
            )
            return (
                f"{alive} of {len(record.replicas)} replicas are there with all that they had: nothing is lost"
                f"{before if record.loss_broker else ''}"
            )
        there = {each: reports[each] for each in record.replicas if each in reports}
        most = max(there, key=lambda each: (there[each].extent, each == broker_id))
        if most != broker_id:
            return (
                f"broker {most} has more, up to offset {there[most].end_offset}, and broker {broker_id} only up to "
                f"{there[broker_id].end_offset}: name {most}, or end that broker first"
            )
        others = [each for each in record.target or record.replicas if each != broker_id]
        others.sort(key=lambda each: each not in reports)
        record.replicas, record.members = [broker_id], {broker_id: reports[broker_id].incarnation}
        record.target = [broker_id, *others]
        record.config += 1
        self._begin_election()
        record.loss_broker, record.loss_end_offset = broker_id, reports[broker_id].end_offset
        record.loss_epoch = record.epoch
        return ""

    def _step(self, report: Report) -> bool:
        record = self.record
        if not record.target or report.settled_config != record.config:
            return False
        if learner := record.learner:
            if learner not in report.caught_up:
                return False
            record.replicas.append(learner)
            record.members[learner] = report.caught_up[learner]
            record.config += 1
            return True
        # A leader goes last, and only once another one leads: move_leader sees to it.
        if leaving := [
            each for each in record.replicas if each not in record.target and each != record.leader
        ]:
            record.replicas.remove(leaving[0])
            record.members.pop(leaving[0], None)
            record.config += 1
            return True
        if len(record.replicas) > len(record.target):
            return False
        record.replicas, record.target = record.target, []
        return True

    def _preferred(self, reports: Mapping[int, Report]) -> list[int]:
        """Replicas that are to lead, those that are to do so most first; without those that cannot write."""
        record = self.record
        return [
            each
            for each in record.target or record.replicas
            if each in record.replicas and not (each in reports and reports[each].cannot_write)
        ]

    def leader_cannot_write(self, reports: Mapping[int, Report]) -> bool:
        """Whether it says so: then leadership is to move at once."""
        leader = reports.get(self.record.leader)
        return leader is not None and leader.cannot_write

    def move_leader(self, reports: Mapping[int, Report]) -> bool:
        """Begin an election if a broker that is to lead rather than the present one is ready; True: it has begun.

        Called once in a while: each move costs producers the time of an election.
        """
        record = self.record
        leader = reports.get(record.leader)
        if leader is None:
            return False
        # One that cannot write may not even have begun.
        if not leader.cannot_write and (leader.leading_epoch != record.epoch or not leader.settled_config):
            return False
        wanted = self._preferred(reports)
        if record.leader in wanted:
            # Not to any other one than the first: that would move it to and fro.
            wanted = wanted[: min(1, wanted.index(record.leader))]
        is_ready = any(
            each in reports
            and record.members.get(each) == reports[each].incarnation
            and reports[each].end_offset >= leader.commit_offset
            for each in wanted
        )
        return is_ready and self._begin_election(is_planned=True)

    def _watch_leader(self, report: Report | None) -> bool:
        record = self.record
        if report is None:
            return False
        if report.leading_epoch == record.epoch:
            self._has_led = True
            # A list: both are done.
            return any([self._admit(report.caught_up), self._step(report)])
        is_another = record.members.get(record.leader) != report.incarnation
        # It promised a higher epoch, gave up, or lost what it had.
        if is_another or self._has_led or report.promised_epoch > record.epoch:
            return self._begin_election()
        return False

    def _admit(self, caught_up: Mapping[int, int]) -> bool:
        record = self.record
        fresh = {
            broker_id: incarnation
            for broker_id, incarnation in caught_up.items()
            if broker_id in record.replicas and record.members.get(broker_id) != incarnation
        }
        record.members.update(fresh)
        return bool(fresh)

    def votes(self, reports: Mapping[int, Report]) -> dict[int, Report]:
        """Reports that count in the election of the recorded epoch."""
        record = self.record
        return {
            broker_id: report
            for broker_id, report in reports.items()
            if record.members.get(broker_id) == report.incarnation and report.promised_epoch == record.epoch
        }

    def _elect(self, reports: Mapping[int, Report], load: Mapping[int, int]) -> bool:
        record = self.record
        # A member has promised more than the record knows: an older record was put back. Go above it.
        highest = max((report.promised_epoch for report in reports.values()), default=0)
        if highest > record.epoch:
            record.epoch = highest
            return self._begin_election()
        votes = self.votes(reports)
        if len(votes) < majority(len(record.replicas)):
            return False
        if self._is_planned:
            safe = self._safe(votes)
            preferred = self._preferred(reports)
            wanted = [each for each in preferred if each in safe]
            is_first = wanted[:1] == preferred[:1]
            are_awaited = any(each in reports and each not in votes for each in record.members)
            if not is_first and are_awaited and self._patience:
                self._patience -= 1
                return False
            if wanted:
                return self._let_lead(wanted[0])
        # The latest log, or any with all that was acknowledged if that one's disk is full.
        able = {each for each in self._safe(votes) if not votes[each].cannot_write} or set(votes)
        return self._let_lead(
            max(
                able,
                key=lambda broker_id: (
                    votes[broker_id].extent,
                    -load.get(broker_id, 0),
                    -record.replicas.index(broker_id),
                ),
            )
        )

    def _let_lead(self, broker_id: int) -> bool:
        self.record.leader = broker_id
        self._has_led = False
        return True

    def _safe(self, votes: Mapping[int, Report]) -> set[int]:
        """Return those that have the latest log of some majority: everything that was acknowledged."""
        logs = {broker_id: vote.extent for broker_id, vote in votes.items()}
        needed = majority(len(self.record.replicas))
        return {each for each in logs if sum(other <= logs[each] for other in logs.values()) >= needed}
