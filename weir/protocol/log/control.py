"""Who leads a partition: decided from reports of brokers, and from a record that is stored before anybody is told.

Each take-over gives the next epoch to a majority of the members, which promise to refuse lower ones and say what they
have; the one with the latest (epoch, end) leads. So everything that a majority has acknowledged is in its log. A
replica that lost data comes under another incarnation, which has no vote until its leader has filled it again
(``next_anchors.md`` 2, amnesia).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from weir.protocol.log.replica import majority


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

    def _begin_election(self) -> bool:
        self.record.epoch += 1
        self.record.leader = 0
        self._has_led = False
        return True

    def _watch_leader(self, report: Report | None) -> bool:
        record = self.record
        if report is None:
            return False
        if report.leading_epoch == record.epoch:
            self._has_led = True
            return self._admit(report.caught_up)
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
        record.leader = max(
            votes,
            key=lambda broker_id: (
                votes[broker_id].last_epoch,
                votes[broker_id].end_offset,
                -load.get(broker_id, 0),
                -record.replicas.index(broker_id),
            ),
        )
        self._has_led = False
        return True


def place_replicas(
    partitions: int, replication: int, brokers: Collection[int], first: int = 0
) -> list[list[int]]:
    """Spread the replicas of a new topic over brokers; each list begins with another broker, in turn.

    Args:
        partitions: of the topic.
        replication: replicas of each; at most as many as there are brokers.
        brokers: ids of those that live.
        first: how many partitions there are already, so that topics of one partition begin at different brokers.
    """
    ring = sorted(brokers)
    return [
        [ring[(first + partition + step) % len(ring)] for step in range(replication)]
        for partition in range(partitions)
    ]
