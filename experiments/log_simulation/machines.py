"""Deciding parts as they ship, and with planted faults, each of which the simulation must find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from weir.protocol.log.control import PartitionControl, Report
from weir.protocol.log.lineage import Lineage
from weir.protocol.log.producers import ProducerTable
from weir.protocol.log.replica import Replica


@dataclass(frozen=True)
class Machines:
    """What a run is made of."""

    replica: Callable[[int, int, int], Replica] = Replica
    control: type[PartitionControl] = PartitionControl
    producers: Callable[[], ProducerTable] = ProducerTable
    #: Whether a replica finds its promise again after a crash.
    keeps_promises: bool = True
    #: Whether the controller finds its latest record again after a crash.
    keeps_record: bool = True
    #: Whether a replica that lost data comes under another incarnation.
    tells_of_loss: bool = True
    #: Whether the producers outlive the entries that retention removes.
    keeps_producers: bool = True
    #: Whether followers note the producers of what they append.
    followers_note_producers: bool = True
    #: Whether a leader asks a majority before it tells a reader where the log ends.
    confirms_reads: bool = True


class _NoFence(Replica):
    """Takes entries from leaders of any epoch."""

    def accepts(self, epoch: int) -> bool:
        """Refuse nobody."""
        return True

    def promise(self, epoch: int) -> bool:
        """Promise, and go on leading."""
        leading, followers = self.leading_epoch, dict(self.followers)
        is_news = super().promise(epoch)
        self.leading_epoch, self.followers = leading, followers
        return is_news


class _NoMajority(Replica):
    """Commits what the leader alone has."""

    def _advance(self) -> None:
        if self.leading_epoch:
            self.commit_offset = max(self.commit_offset, self.durable_offset)


class _OffsetLineage(Lineage):
    """Takes logs for equal up to the end of the shorter one."""

    def agreement(self, log_end: int, others: Iterable[tuple[int, int]], others_end: int) -> int:
        """Look at the ends alone."""
        return min(log_end, others_end)


class _CutsByOffset(Replica):
    """Cuts followers by the length of their logs."""

    def follower_opened(
        self, broker_id: int, incarnation: int, lineage: Iterable[tuple[int, int]], end_offset: int
    ) -> int:
        """Compare ends and nothing else."""
        self.lineage = _OffsetLineage(self.lineage.starts)
        return super().follower_opened(broker_id, incarnation, lineage, end_offset)


class _AdmitsAtOnce(Replica):
    """Calls a follower caught up before it has anything."""

    def caught_up(self) -> dict[int, int]:
        """Name every follower that is no member."""
        return {
            broker_id: follower.incarnation
            for broker_id, follower in self.followers.items()
            if self.leading_epoch and self.members.get(broker_id) != follower.incarnation
        }


class _UncleanElection(PartitionControl):
    """Lets the first one lead that reports, whatever it has."""

    def _elect(self, reports: Mapping[int, Report], load: Mapping[int, int]) -> bool:
        votes = self.votes(reports)
        if not votes:
            return False
        self.record.leader = min(votes)
        self._has_led = False
        return True


class _SwapsAtOnce(PartitionControl):
    """Exchanges replicas in one step."""

    def _step(self, report: Report) -> bool:
        record = self.record
        if record.learner not in report.caught_up or report.settled_config != record.config:
            return super()._step(report)
        leaving = [each for each in record.replicas if each not in (*record.target, record.leader)]
        for each in leaving[:1]:
            record.replicas.remove(each)
            record.members.pop(each, None)
        return super()._step(report)


class _SettlesAtOnce(Replica):
    """Says that a set of replicas has committed something as soon as it has heard of it."""

    @property
    def settled_config(self) -> int:
        """Ask for no entry."""
        return self.config


class _MovesToAny(PartitionControl):
    """Lets the broker lead that is to, whatever it has."""

    def _safe(self, votes: Mapping[int, Report]) -> set[int]:
        return set(votes)


#: Planted faults by name.
FAULTS: dict[str, Machines] = {
    "no fence": Machines(replica=_NoFence),
    "commit before majority": Machines(replica=_NoMajority),
    "truncation by offset alone": Machines(replica=_CutsByOffset),
    "promise lost at restart": Machines(keeps_promises=False),
    "epoch lost at restart": Machines(keeps_record=False),
    "duplicate after failover": Machines(followers_note_producers=False),
    "unclean leader": Machines(control=_UncleanElection),
    "amnesia": Machines(tells_of_loss=False),
    "admitted too early": Machines(replica=_AdmitsAtOnce),
    "producers lost with their segment": Machines(keeps_producers=False),
    "replicas exchanged in one step": Machines(control=_SwapsAtOnce),
    "next step before the last one counts": Machines(replica=_SettlesAtOnce),
    "leadership moved to a shorter log": Machines(control=_MovesToAny),
    "stale reads": Machines(confirms_reads=False),
}
